//! Whether a request comes from the server's own machine.

use std::convert::Infallible;

use axum::extract::{ConnectInfo, FromRequestParts};
use http::{Extensions, HeaderMap, request::Parts};

use super::peers::{InProcess, Peer};
use crate::app::App;

/// Headers that proxies add. A client on the same machine has no reason to send one, so a request with one is not local,
/// whether the proxy is trusted or not.
const PROXY_HEADERS: [&str; 5] = ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"];

/// Marks a request that a trusted proxy has forwarded, for which the address of the connection was replaced.
#[derive(Clone, Copy)]
pub(super) struct Forwarded;

/// Whether a request comes from the server's own machine: over a loopback connection without a proxy in between, or from
/// inside this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locality(pub bool);

impl Locality {
    pub fn of(extensions: &Extensions, headers: &HeaderMap) -> Self {
        if extensions.get::<InProcess>().is_some() {
            return Self(true);
        }
        let is_forwarded =
            extensions.get::<Forwarded>().is_some() || PROXY_HEADERS.iter().any(|name| headers.contains_key(*name));
        let peer = extensions.get::<ConnectInfo<Peer>>();
        let is_loopback = peer.is_some_and(|ConnectInfo(Peer(peer))| peer.ip().to_canonical().is_loopback());
        Self(is_loopback && !is_forwarded)
    }
}

impl FromRequestParts<App> for Locality {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.extensions, &parts.headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo(Peer(address.parse().unwrap())));
        extensions
    }

    #[test]
    fn only_direct_loopback_connections_are_local() {
        let none = HeaderMap::new();
        for local in ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(Locality::of(&from(local), &none), Locality(true), "{local}");
        }
        for remote in ["10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1", "0.0.0.0:1"] {
            assert_eq!(Locality::of(&from(remote), &none), Locality(false), "{remote}");
        }
        assert_eq!(Locality::of(&Extensions::new(), &none), Locality(false), "the address is unknown");
    }

    #[test]
    fn a_request_that_a_proxy_forwards_is_not_local() {
        let mut extensions = from("127.0.0.1:0");
        extensions.insert(Forwarded);
        assert_eq!(Locality::of(&extensions, &HeaderMap::new()), Locality(false));
        for name in PROXY_HEADERS {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), "127.0.0.1".parse().unwrap())]);
            assert_eq!(Locality::of(&from("127.0.0.1:1"), &headers), Locality(false), "{name}");
        }
    }

    #[test]
    fn a_request_inside_the_process_is_local() {
        let mut extensions = Extensions::new();
        extensions.insert(InProcess);
        assert_eq!(Locality::of(&extensions, &HeaderMap::new()), Locality(true));
    }
}
