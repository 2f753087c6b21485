//! The address of a client behind proxies that the operator trusts. Each proxy appends the address that it was called from to
//! `X-Forwarded-For`; what a client has written there itself comes before these addresses and is not believed.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ostler_protocol::{Failure, Rule, outgoing::AddressRange};

const FORWARDED_FOR: &str = "x-forwarded-for";

/// Proxies in front of this server.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<AddressRange>);

impl TrustedProxies {
    /// Reads `server.trusted_proxies`.
    pub fn read(entries: &[String]) -> Result<Self, Failure> {
        let read = |text: &String| {
            let message = || format!("server.trusted_proxies: {text:?} is neither an address nor a network");
            AddressRange::read(text).ok_or_else(|| Failure::invalid(Rule::Config, message()))
        };
        entries.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The client that a request comes from, if a trusted proxy has passed it on: the last address in the list that is not
    /// a trusted proxy's, or the first one if all are. `None` if the connection is the client's own.
    pub fn client_of(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        if !self.trusts(peer) {
            return None;
        }
        let values: Vec<&str> = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
        let mut nearest = None;
        for entry in values.iter().flat_map(|value| value.split(',')).rev() {
            let Some(address) = address_of(entry.trim()) else { break };
            nearest = Some(address);
            if !self.trusts(address) {
                break;
            }
        }
        nearest
    }

    pub fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|proxy| proxy.holds(address.to_canonical()))
    }
}

/// An address, with or without a port.
fn address_of(text: &str) -> Option<IpAddr> {
    let plain = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let address = plain.or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    address.ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, headers: &[&str]) -> Option<String> {
        let proxies = ["127.0.0.1", "10.0.0.0/8", "::1"].map(String::from);
        let mut map = HeaderMap::new();
        for value in headers {
            map.append(FORWARDED_FOR, value.parse().unwrap());
        }
        let found = TrustedProxies::read(&proxies).unwrap().client_of(peer.parse().unwrap(), &map);
        found.map(|address| address.to_string())
    }

    #[test]
    fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
        for (peer, headers, expected) in [
            ("127.0.0.1", &["203.0.113.7"][..], Some("203.0.113.7")),
            ("127.0.0.1", &["203.0.113.7, 10.1.2.3"], Some("203.0.113.7")),
            ("127.0.0.1", &["203.0.113.7", "10.1.2.3"], Some("203.0.113.7")),
            ("10.9.9.9", &["203.0.113.7:4711"], Some("203.0.113.7")),
            ("::1", &["[2001:db8::7]:4711"], Some("2001:db8::7")),
            ("::ffff:127.0.0.1", &["::ffff:203.0.113.7"], Some("203.0.113.7")),
            // What the client sent about itself comes first and is not trusted.
            ("127.0.0.1", &["1.1.1.1, 203.0.113.7"], Some("203.0.113.7")),
            ("127.0.0.1", &["127.0.0.1, 203.0.113.7"], Some("203.0.113.7")),
            ("127.0.0.1", &["10.1.2.3, 10.4.5.6"], Some("10.1.2.3")),
            ("127.0.0.1", &["1.1.1.1, unknown, 10.1.2.3"], Some("10.1.2.3")),
            ("127.0.0.1", &["unknown"], None),
            ("127.0.0.1", &[], None),
            // Not a proxy: its header is not read.
            ("203.0.113.9", &["127.0.0.1"], None),
        ] {
            assert_eq!(client(peer, headers).as_deref(), expected, "{peer} {headers:?}");
        }
    }

    #[test]
    fn an_entry_that_is_no_address_is_named() {
        let failure = TrustedProxies::read(&["proxy.internal".into()]).unwrap_err();
        assert!(failure.message.contains("proxy.internal"), "{}", failure.message);
        assert!(TrustedProxies::default().client_of([127, 0, 0, 1].into(), &HeaderMap::new()).is_none());
    }
}
