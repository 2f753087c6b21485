//! The way out: one attempt to tell a receiver something. Its owner chose the address, so nothing about it is trusted: names
//! are resolved once, checked, and connected to as checked; no redirect is followed, no proxy asked, and of the answer
//! nothing is read but its head.

use std::{
    error::Error,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use ostler_protocol::{Failure, addresses, webhooks::WEBHOOK_URL_BYTES_MAX};
use reqwest::{
    Client, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
    redirect::Policy,
};

const CONNECT_MAX: Duration = Duration::from_secs(5);

pub struct Sender {
    http: Client,
    reach: Reach,
    patience: Duration,
}

/// What an attempt brought.
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<String>,
}

impl Sender {
    pub fn new(reach: Reach, patience: Duration) -> Result<Self, Failure> {
        let lookup: Lookup =
            Arc::new(|name| Box::pin(async move { tokio::net::lookup_host((name, 0)).await.map(Iterator::collect) }));
        let resolver = Checked { admits: Arc::new(move |address| reach.admits(address)), lookup };
        Ok(Self { http: client(resolver, patience)?, reach, patience })
    }

    /// `Err` says why there was no answer, for the webhook's owner.
    pub async fn post(&self, url: &str, headers: HeaderMap, body: String) -> Result<Answer, String> {
        // What was allowed when the webhook was set need not be allowed now.
        let url = self.reach.check(url).map_err(|failure| failure.message)?;
        let request = self.http.post(url).headers(headers).header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.map_err(|error| self.why(&error))?;
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Answer { status: response.status().as_u16(), retry_after })
    }

    /// In our words: what a receiver, or a resolver, says is not passed on.
    fn why(&self, error: &reqwest::Error) -> String {
        let mut cause = error.source();
        while let Some(found) = cause {
            if found.is::<AddressRefused>() {
                return AddressRefused.to_string();
            }
            cause = found.source();
        }
        if error.is_timeout() {
            return format!("no answer within {} ms", self.patience.as_millis());
        }
        if error.is_connect() { "no connection" } else { "the connection ended before an answer" }.to_owned()
    }
}

fn client(resolver: Checked, patience: Duration) -> Result<Client, Failure> {
    // The process may have chosen a provider already; then that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .dns_resolver(Arc::new(resolver))
        .pool_max_idle_per_host(0)
        .connect_timeout(CONNECT_MAX.min(patience))
        .timeout(patience)
        .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")));
    http.build().map_err(Failure::internal)
}

/// How far webhooks may reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// Public addresses, over HTTPS.
    Public,
    /// This machine too, also in the clear: for development.
    Loopback,
}

impl Reach {
    fn admits(self, address: IpAddr) -> bool {
        addresses::is_public(address) || self == Self::Loopback && address.is_loopback()
    }

    /// Checks all that can be told of a URL without asking for addresses. A name is checked when it is resolved; an address
    /// is here, because it is never resolved.
    pub fn check(self, text: &str) -> Result<Url, Failure> {
        let refused = |why: &str| Err(Failure::invalid("webhook-url", format!("this cannot be a webhook: {why}")));
        if text.len() > WEBHOOK_URL_BYTES_MAX {
            return refused("the URL is too long");
        }
        let Ok(url) = Url::parse(text) else { return refused("not a URL") };
        let address = url.host_str().map(|host| host.trim_matches(['[', ']'])).and_then(|host| host.parse().ok());
        let is_loopback = address.map_or_else(|| is_own_name(&url), |address: IpAddr| address.is_loopback());
        match url.scheme() {
            "https" => {}
            "http" if self == Self::Loopback && is_loopback => {}
            _ => return refused("it must be https"),
        }
        if url.host_str().is_none_or(str::is_empty) || !url.username().is_empty() || url.password().is_some() {
            return refused("it must have a host, and no user");
        }
        if address.is_some_and(|address| !self.admits(address)) || is_loopback && self == Self::Public {
            return refused(&AddressRefused.to_string());
        }
        Ok(url)
    }
}

/// `localhost` and what is below it is this machine, whoever resolves it (RFC 6761).
fn is_own_name(url: &Url) -> bool {
    let name = url.host_str().unwrap_or_default().trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

#[derive(Debug)]
struct AddressRefused;

impl fmt::Display for AddressRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its address is not a public one")
    }
}

impl Error for AddressRefused {}

/// Resolves a name to the addresses that may be reached. The connection is made to these and no others, so that a name that
/// means something else a moment later changes nothing.
struct Checked {
    admits: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    lookup: Lookup,
}

/// Who says which addresses a name has.
type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let (admits, found) = (self.admits.clone(), (self.lookup)(name.as_str().to_owned()));
        Box::pin(async move {
            let admitted: Vec<_> = found.await?.into_iter().filter(|address| admits(address.ip())).collect();
            if admitted.is_empty() {
                return Err(AddressRefused.into());
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

    fn allows(reach: Reach, url: &str) -> bool {
        reach.check(url).is_ok()
    }

    #[test]
    fn a_webhook_is_https_to_a_public_host() {
        for good in [
            "https://agent.example/hook",
            "https://agent.example:8443/a?b=c",
            "https://8.8.8.8/",
            "https://[2606:4700::1]/",
        ] {
            assert!(allows(Reach::Public, good), "{good}");
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
            assert!(!allows(Reach::Public, bad), "{bad}");
        }
        assert!(!allows(Reach::Public, &format!("https://agent.example/{}", "a".repeat(WEBHOOK_URL_BYTES_MAX))));
    }

    #[test]
    fn development_reaches_this_machine_and_no_further() {
        for good in ["http://127.0.0.1:9/hook", "http://localhost:9/", "http://[::1]:9/", "https://localhost/"] {
            assert!(allows(Reach::Loopback, good), "{good}");
        }
        for bad in ["http://agent.example/", "http://10.0.0.1/", "https://192.168.0.1/", "http://localhost.example/"] {
            assert!(!allows(Reach::Loopback, bad), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_is_refused_after_it_is_resolved() {
        let resolved = |reach: Reach| {
            let lookup: Lookup = Arc::new(|_| Box::pin(async { Ok(vec!["127.0.0.1:0".parse().unwrap()]) }));
            let resolver = Checked { admits: Arc::new(move |address| reach.admits(address)), lookup };
            resolver.resolve("agent.example".parse().unwrap())
        };
        let refused = resolved(Reach::Public).await.err().unwrap();
        assert!(refused.is::<AddressRefused>(), "{refused}");
        let mut found = resolved(Reach::Loopback).await.unwrap();
        assert!(found.all(|address| address.ip().is_loopback()));
    }

    /// Answers every connection with 204, and counts them.
    async fn listening(address: &str) -> (SocketAddr, Arc<AtomicUsize>) {
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

    #[tokio::test]
    async fn whoever_names_a_private_address_is_told_so_and_not_connected_to() {
        let (inside, reached) = listening("127.0.0.1:0").await;
        let lookup: Lookup = Arc::new(move |_| Box::pin(async move { Ok(vec![inside]) }));
        let resolver = Checked { admits: Arc::new(|address| Reach::Public.admits(address)), lookup };
        let patience = Duration::from_secs(5);
        let sender = Sender { http: client(resolver, patience).unwrap(), reach: Reach::Public, patience };
        let url = format!("https://agent.example:{}/hook", inside.port());
        let why = sender.post(&url, HeaderMap::new(), "{}".into()).await.err();
        assert_eq!(why.as_deref(), Some("its address is not a public one"));
        assert_eq!(reached.load(Ordering::SeqCst), 0);
    }

    /// The first address stands for a public one, the second for one inside.
    #[tokio::test]
    async fn a_name_that_means_something_else_a_moment_later_leads_nowhere_else() {
        let (outside, told) = listening("127.0.0.1:0").await;
        let (inside, reached) = listening(&format!("127.0.0.2:{}", outside.port())).await;
        let answers = Mutex::new(VecDeque::from([vec![outside], vec![inside, outside], vec![inside]]));
        let lookup: Lookup = Arc::new(move |_| {
            let answer = answers.lock().unwrap().pop_front().expect("it is asked once for each connection");
            Box::pin(async move { Ok(answer) })
        });
        let resolver = Checked { admits: Arc::new(move |address| address == outside.ip()), lookup };
        let http = client(resolver, Duration::from_secs(5)).unwrap();
        let post = || http.post(format!("http://agent.example:{}/hook", outside.port())).body("{}").send();
        for _ in 0..2 {
            assert_eq!(post().await.unwrap().status(), 204);
        }
        assert!(post().await.is_err(), "it means the one inside by now, and nothing else");
        assert_eq!((told.load(Ordering::SeqCst), reached.load(Ordering::SeqCst)), (2, 0));
    }
}
