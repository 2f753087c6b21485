//! Connections to addresses that a caller chose. Nothing about such an address is trusted: a name is resolved once, each of
//! its addresses is checked, and the connection is made to a checked address. A name that resolves differently a moment
//! later has no effect.

use std::{
    error::Error,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use ostler_protocol::outgoing::OutgoingRules;
use reqwest::{
    ClientBuilder, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use tokio::time::{Duration, timeout};

const LOOKUP_MS_MAX: u64 = 10_000;

/// Why a URL may not be connected to. The message is for the caller who chose it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutgoingError {
    NotAUrl,
    NotHttps,
    NoHostOrUser,
    Address,
}

impl fmt::Display for OutgoingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAUrl => "not a URL",
            Self::NotHttps => "it must be https",
            Self::NoHostOrUser => "it must have a host, and no user",
            Self::Address => "its address is not a public one",
        })
    }
}

impl Error for OutgoingError {}

/// Checks everything about a URL that can be checked without resolving its name. Plain HTTP is allowed only for hosts that
/// the operator has listed.
pub fn check_url(rules: &OutgoingRules, text: &str) -> Result<Url, OutgoingError> {
    let url = Url::parse(text).map_err(|_| OutgoingError::NotAUrl)?;
    let host = url.host_str().filter(|host| !host.is_empty());
    let address = address_of(&url);
    let is_own = is_own_name(&url);
    let admits_own = rules.admits_loopback(host.unwrap_or_default());
    match url.scheme() {
        "https" => {}
        "http" if host.is_some_and(|host| rules.lists(host)) || is_own && admits_own => {}
        _ => return Err(OutgoingError::NotHttps),
    }
    let Some(host) = host else { return Err(OutgoingError::NoHostOrUser) };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(OutgoingError::NoHostOrUser);
    }
    if address.is_some_and(|address| !rules.admits(host, address)) || is_own && !admits_own {
        return Err(OutgoingError::Address);
    }
    Ok(url)
}

fn address_of(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether the name is `localhost` or below it: this machine, whatever the resolver returns (RFC 6761).
fn is_own_name(url: &Url) -> bool {
    let name = url.host_str().unwrap_or_default().trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

/// The addresses of a URL's host that may be connected to, with the URL's port. For programs that connect by themselves.
pub async fn resolve(rules: &OutgoingRules, url: &Url) -> io::Result<Vec<SocketAddr>> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or(0);
    addresses(rules, host, port).await
}

/// The addresses of a host that may be connected to. An error if there is none, or if the name cannot be resolved in time.
pub async fn addresses(rules: &OutgoingRules, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let found = timeout(Duration::from_millis(LOOKUP_MS_MAX), tokio::net::lookup_host((name, port))).await;
    let found = found.map_err(io::Error::other)??;
    let mut admitted: Vec<_> = found.filter(|address| rules.admits(name, address.ip())).collect();
    admitted.dedup();
    if admitted.is_empty() { Err(io::Error::other(OutgoingError::Address)) } else { Ok(admitted) }
}

/// Whether a connection failed because its address is not allowed.
pub fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(found) = cause {
        // An I/O error does not report the error it wraps as its source.
        let wrapped = found.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if found.is::<OutgoingError>() || wrapped.is_some_and(|wrapped| wrapped.is::<OutgoingError>()) {
            return true;
        }
        cause = found.source();
    }
    false
}

/// Restricts a client to these rules: checked addresses, no redirects, no proxy. A URL with an address instead of a name
/// is never resolved, so it must be checked with [`check_url`] first.
pub fn restrict(builder: ClientBuilder, rules: &OutgoingRules) -> ClientBuilder {
    let rules = rules.clone();
    let admits = move |host: &str, address: IpAddr| rules.admits(host, address);
    restrict_with(builder, CheckedResolver { admits: Arc::new(admits), lookup: Arc::new(system_lookup) })
}

/// Restricts the name of this host to addresses that the rules allow. Other names are those of proxies that the operator has
/// configured, and are not restricted.
pub fn restrict_host(builder: ClientBuilder, host: &str, rules: &OutgoingRules) -> ClientBuilder {
    let resolver = CheckedResolver { admits: host_rule(host, rules), lookup: Arc::new(system_lookup) };
    builder.redirect(Policy::none()).dns_resolver(Arc::new(resolver))
}

fn host_rule(host: &str, rules: &OutgoingRules) -> Arc<Admits> {
    let (rules, host) = (rules.clone(), host.to_owned());
    Arc::new(move |name, address| !name.eq_ignore_ascii_case(&host) || rules.admits(name, address))
}

fn restrict_with(builder: ClientBuilder, resolver: CheckedResolver) -> ClientBuilder {
    builder.no_proxy().redirect(Policy::none()).dns_resolver(Arc::new(resolver))
}

fn system_lookup(name: String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
    Box::pin(async move { tokio::net::lookup_host((name, 0)).await.map(Iterator::collect) })
}

type Lookup = dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;
type Admits = dyn Fn(&str, IpAddr) -> bool + Send + Sync;

/// Resolves a name to the addresses that may be connected to.
struct CheckedResolver {
    admits: Arc<Admits>,
    lookup: Arc<Lookup>,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let (admits, found) = (self.admits.clone(), (self.lookup)(host.clone()));
        Box::pin(async move {
            let admitted: Vec<_> = found.await?.into_iter().filter(|address| admits(&host, address.ip())).collect();
            if admitted.is_empty() {
                return Err(OutgoingError::Address.into());
            }
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn rules(entries: &[&str]) -> OutgoingRules {
        OutgoingRules::read(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn allows(entries: &[&str], url: &str) -> bool {
        check_url(&rules(entries), url).is_ok()
    }

    #[test]
    fn without_rules_only_https_to_a_public_host_is_allowed() {
        for good in [
            "https://agent.example/hook",
            "https://agent.example:8443/a?b=c",
            "https://8.8.8.8/",
            "https://[2606:4700::1]/",
        ] {
            assert!(allows(&[], good), "{good}");
        }
        for bad in [
            "http://agent.example/hook",
            "http://127.0.0.1:9/",
            "https://127.0.0.1/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest/meta-data",
            "https://[::1]/",
            "https://localhost/",
            "https://localhost.:8443/",
            "https://agent.localhost/",
            "https://[::ffff:8.8.8.8]/",
            "https://[fd00::1]/",
            // Other ways to write 127.0.0.1.
            "https://2130706433/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://user@agent.example/",
            "https://:secret@agent.example/",
            "ftp://agent.example/",
            "file:///etc/passwd",
            "https://",
            "agent.example",
            "",
        ] {
            assert!(!allows(&[], bad), "{bad}");
        }
    }

    #[test]
    fn only_listed_hosts_may_be_reached_without_tls() {
        let loopback = ["127.0.0.0/8", "::1"];
        for good in ["http://127.0.0.1:9/hook", "http://localhost:9/", "http://[::1]:9/", "https://localhost/"] {
            assert!(allows(&loopback, good), "{good}");
        }
        for bad in ["http://agent.example/", "http://10.0.0.1/", "https://192.168.0.1/", "http://localhost.example/"] {
            assert!(!allows(&loopback, bad), "{bad}");
        }
        assert!(allows(&["git.internal"], "http://git.internal/") && allows(&["10.0.0.0/8"], "http://10.1.2.3/"));
        assert!(!allows(&["10.0.0.0/8"], "http://git.internal/"), "its address is not known yet");
    }

    #[tokio::test]
    async fn names_of_this_machine_have_no_allowed_address() {
        assert!(addresses(&rules(&[]), "localhost", 80).await.is_err_and(|error| is_refused(&error)));
        let found = addresses(&rules(&["127.0.0.0/8", "::1"]), "localhost", 80).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
        assert!(
            addresses(&rules(&["localhost"]), "localhost", 80).await.is_err(),
            "listing the name alone never allows this machine"
        );
        let named = rules(&["localhost"]).with_listed_localhost();
        let found = addresses(&named, "localhost", 80).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()));
        assert!(check_url(&named, "http://localhost:9/").is_ok());
        for other in ["http://127.0.0.1:9/", "https://127.0.0.1/", "https://other.localhost/"] {
            assert!(check_url(&named, other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_host_that_the_operator_named_may_be_private_but_never_this_machine() {
        let admits = host_rule("id.internal", &rules(&[]).with_host("id.internal"));
        let admits = |name: &str, address: &str| admits(name, address.parse().unwrap());
        assert!(admits("id.internal", "10.0.0.1") && admits("ID.internal", "8.8.8.8"));
        assert!(!admits("id.internal", "127.0.0.1") && !admits("Id.Internal", "169.254.169.254"));
        assert!(admits("proxy.internal", "127.0.0.1"), "the operator's proxy is not restricted");
    }

    /// Responds to every connection with 204, and counts them.
    async fn listen(address: &str) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let (address, count) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let counted = count.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"HTTP/1.1 204 -\r\n\r\n").await;
            }
        });
        (address, count)
    }

    fn client(resolver: CheckedResolver) -> reqwest::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder().tls_certs_only([]).pool_max_idle_per_host(0);
        restrict_with(builder, resolver).build().unwrap()
    }

    #[tokio::test]
    async fn a_name_with_a_private_address_is_not_connected_to() {
        let (inside, reached) = listen("127.0.0.1:0").await;
        let lookup: Arc<Lookup> = Arc::new(move |_| Box::pin(async move { Ok(vec![inside]) }));
        let rules = rules(&[]);
        let admits: Arc<Admits> = Arc::new(move |host, address| rules.admits(host, address));
        let http = client(CheckedResolver { admits, lookup });
        let error = http.get(format!("http://agent.example:{}/", inside.port())).send().await.unwrap_err();
        assert!(is_refused(&error), "{error:?}");
        assert_eq!(reached.load(Ordering::SeqCst), 0);
    }

    /// A listed name that is made to resolve to this machine.
    #[tokio::test]
    async fn a_listed_name_does_not_lead_to_this_machine_although_localhost_is_listed() {
        let (inside, reached) = listen("127.0.0.1:0").await;
        let lookup: Arc<Lookup> = Arc::new(move |_| Box::pin(async move { Ok(vec![inside]) }));
        let rules = rules(&["localhost", "api.internal"]).with_listed_localhost();
        let admits: Arc<Admits> = Arc::new(move |host, address| rules.admits(host, address));
        let http = client(CheckedResolver { admits, lookup });
        let get = |host: &str| http.get(format!("http://{host}:{}/", inside.port())).send();
        let error = get("api.internal").await.unwrap_err();
        assert!(is_refused(&error), "{error:?}");
        assert_eq!(reached.load(Ordering::SeqCst), 0);
        assert_eq!(get("localhost").await.unwrap().status(), 204);
    }

    /// The first address represents a public one, the second a private one.
    #[tokio::test]
    async fn a_name_that_resolves_differently_later_is_checked_again() {
        let (outside, reached_outside) = listen("127.0.0.1:0").await;
        let (inside, reached_inside) = listen(&format!("127.0.0.2:{}", outside.port())).await;
        let answers = Mutex::new(VecDeque::from([vec![outside], vec![inside, outside], vec![inside]]));
        let lookup: Arc<Lookup> = Arc::new(move |_| {
            let answer = answers.lock().unwrap().pop_front().expect("it is resolved once per connection");
            Box::pin(async move { Ok(answer) })
        });
        let http = client(CheckedResolver { admits: Arc::new(move |_, address| address == outside.ip()), lookup });
        let post = || http.post(format!("http://agent.example:{}/hook", outside.port())).body("{}").send();
        for _ in 0..2 {
            assert_eq!(post().await.unwrap().status(), 204);
        }
        assert!(post().await.is_err(), "it now resolves to the private address only");
        assert_eq!((reached_outside.load(Ordering::SeqCst), reached_inside.load(Ordering::SeqCst)), (2, 0));
    }
}
