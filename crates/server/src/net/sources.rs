//! Where a request comes from: the host that it names and the page that sends it. A web page in the same browser must not be able
//! to use the server, neither by its own name nor by a name that it binds to this machine.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, Request};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use ostler_protocol::{Failure, Rule};

use super::{
    access_table::RouteAccess,
    peers::{InProcess, Peer},
};
use crate::{
    app::App,
    auth::Access,
    config::{Config, EVERY_ORIGIN},
    dialect::{Dialects, GateRules},
};

/// Headers that a request may have only once.
const SINGLE_HEADERS: [HeaderName; 7] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::ORIGIN,
    header::IF_MATCH,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("last-event-id"),
];

/// A route as far as its callers' sources matter.
#[derive(Clone, Copy)]
pub(super) struct RouteSources {
    pub access: Option<RouteAccess>,
    /// The rules of the route's dialect.
    pub rules: Option<&'static GateRules>,
    /// Whether the route is the engine's, and a dialect shares it.
    pub is_shared: bool,
}

/// Checks the head, the host and the origin of a request from a socket.
pub(super) fn check_source(app: &App, request: &Request, route: RouteSources) -> Result<(), Failure> {
    if request.extensions().get::<InProcess>().is_none() {
        check_head(request)?;
        check_host(app, request, route)?;
        check_origin(app, request, route)?;
    }
    Ok(())
}

/// Checked whatever the bind address: a page that re-binds its name also connects from loopback, but sends its own name.
pub(super) fn has_loopback_host(request: &Request) -> bool {
    host_of(request).is_some_and(is_loopback_name)
}

fn host_of(request: &Request) -> Option<&str> {
    request.headers().get(header::HOST).and_then(|value| value.to_str().ok()).or(request.uri().host())
}

pub(super) fn from_loopback(request: &Request) -> bool {
    request.extensions().get::<ConnectInfo<Peer>>().is_some_and(|ConnectInfo(peer)| peer.0.ip().is_loopback())
}

/// Rejects heads that repeat a header or name two different hosts: a proxy in front may have used the other value.
pub(super) fn check_head(request: &Request) -> Result<(), Failure> {
    let headers = request.headers();
    for name in SINGLE_HEADERS {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(Failure::invalid(Rule::HeaderRepeated, format!("the header {name} is given twice")));
        }
    }
    let Some(authority) = request.uri().authority() else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    if host.is_some_and(|host| !host.eq_ignore_ascii_case(authority.as_str())) {
        return Err(Failure::invalid(Rule::Authority, "the request target names another host than the Host header"));
    }
    Ok(())
}

fn is_bound_to_loopback(config: &Config) -> bool {
    config.server.listen.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

/// On a loopback bind the host must be a name of the server: a page that re-binds its own name to 127.0.0.1 sends another.
pub(super) fn check_host(app: &App, request: &Request, route: RouteSources) -> Result<(), Failure> {
    let Some(host) = host_of(request) else {
        return Err(Failure::rule(Rule::HostMissing, "a Host header is required"));
    };
    let config = &app.config;
    let rule = route.rules.and_then(|rules| rules.names_server);
    let has_own_name = rule.is_some_and(|names_server| names_server(config, host));
    // Tunnels and load balancers send their own port, and ask shared paths first.
    let names_server = has_own_name || ((rule.is_none() || route.is_shared) && is_loopback_name(host));
    if !is_bound_to_loopback(config)
        || names_server
        || (is_open(route.access) && Dialects::of(app).has_host(app, name_of(host)))
        || config.server.hosts.iter().any(|name| name.eq_ignore_ascii_case(name_of(host)))
    {
        return Ok(());
    }
    Err(Failure::rule(Rule::Host, "this host name is not one of this server's"))
}

/// Whether the route responds under host names of dialects. The others do not.
fn is_open(access: Option<RouteAccess>) -> bool {
    matches!(access, Some(RouteAccess::Requires(Access::Anonymous | Access::Public)))
}

/// A host without its port.
pub fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_loopback_name(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A page's origin must be allowed by name, or be the server itself where the route's dialect has pages. Some of a page's
/// requests name no origin (images, scripts, blind reads), but then the browser marks them as cross-site in `Sec-Fetch-Site`.
fn check_origin(app: &App, request: &Request, route: RouteSources) -> Result<(), Failure> {
    let headers = request.headers();
    let has = |name: &str, value: &str| headers.get(name).is_some_and(|sent| sent == value);
    let from_elsewhere = has("sec-fetch-site", "cross-site") || has("sec-fetch-site", "same-site");
    // The user follows a link: no page can read the response.
    let is_visit = request.method() == Method::GET && has("sec-fetch-dest", "document");
    let suspicious = headers.contains_key(header::ORIGIN) || (from_elsewhere && !is_visit);
    let is_allowed = || {
        allowed_origin(app, headers).is_some() || (!from_elsewhere && is_own_origin(&app.config, headers, route.rules))
    };
    if suspicious && !is_allowed() {
        return Err(Failure::rule(Rule::Origin, "pages of this origin may not call"));
    }
    Ok(())
}

/// Whether the page was served by this server. Only on a loopback bind, where the names of the server are known.
fn is_own_origin(config: &Config, headers: &HeaderMap, rules: Option<&GateRules>) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let scheme = if config.server.tls_cert.is_some() { "https://" } else { "http://" };
    let host = origin.and_then(|origin| origin.strip_prefix(scheme));
    let rule = rules.and_then(|rules| rules.names_server);
    let names_server = |host| rule.is_some_and(|names_server| names_server(config, host));
    is_bound_to_loopback(config) && host.is_some_and(names_server)
}

/// The origin of the request, if its pages may read the response.
pub(super) fn allowed_origin(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let is_every = |allowed: &str| allowed == EVERY_ORIGIN && origin != "null";
    let is_allowed = |allowed: &String| is_every(allowed) || allowed.as_bytes() == origin.as_bytes();
    app.config.server.allow_origins.iter().any(is_allowed).then(|| origin.clone())
}

/// What pages of allowed origins may do. The list of origins is never sent.
pub(super) struct PageSharing {
    request_headers: HeaderValue,
    response_headers: HeaderValue,
}

const METHODS: &str = "GET, POST, PATCH, PUT, DELETE, OPTIONS";
const REQUEST_HEADERS: &[&str] = &["authorization", "content-type", "idempotency-key", "last-event-id"];
const RESPONSE_HEADERS: &[&str] =
    &["x-trace-id", "retry-after", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
/// How long a browser may reuse the response to a preflight: a day.
const PREFLIGHT_S: u32 = 86_400;

impl PageSharing {
    pub(super) fn new(dialects: &Dialects) -> Self {
        let list = |own: &[&'static str], others: fn(&GateRules) -> &'static [&'static str]| {
            let others = dialects.iter().filter_map(|dialect| dialect.gate).flat_map(others);
            let mut names = own.to_vec();
            others.for_each(|name| {
                if !names.contains(name) {
                    names.push(name)
                }
            });
            // Names of headers are ASCII.
            HeaderValue::from_str(&names.join(", ")).unwrap_or_else(|_| HeaderValue::from_static(""))
        };
        Self {
            request_headers: list(REQUEST_HEADERS, |rules| rules.request_headers),
            response_headers: list(RESPONSE_HEADERS, |rules| rules.response_headers),
        }
    }

    /// Lets the page of an allowed origin read the response.
    pub(super) fn share(&self, headers: &mut HeaderMap, origin: HeaderValue) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, self.request_headers.clone());
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, self.response_headers.clone());
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_S));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_loopback() {
        for good in ["localhost", "localhost:4747", "127.0.0.1:1", "127.1.2.3", "[::1]:80", "LOCALHOST:9"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in ["evil.test", "evil.test:4747", "localhost.evil.test", "10.0.0.1", "127.0.0.1.evil.test", ""] {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }
}
