//! Which addresses the server connects to for a caller: public ones, and those that the operator allows beside them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::addresses::{is_private, is_public};

/// The operator's additions to the public addresses. None by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutgoingRules {
    networks: Vec<AddressRange>,
    hosts: Vec<String>,
    /// Whether the host `localhost` may be this machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    localhost: bool,
}

/// The name of this machine, whatever a resolver returns (RFC 6761).
const LOCALHOST: &str = "localhost";

/// An address, or a network of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddressRange {
    address: IpAddr,
    length: u8,
}

impl OutgoingRules {
    /// Reads a list of addresses (`10.1.2.3`), networks (`10.0.0.0/8`, `fd00::/8`) and host names (`git.internal`). `Err` is
    /// the first entry that is none of these.
    pub fn read(entries: &[String]) -> Result<Self, String> {
        let mut rules = Self::default();
        for entry in entries {
            match AddressRange::read(entry) {
                Some(network) => rules.networks.push(network),
                None if is_host_name(entry) => rules.hosts.push(normal(entry)),
                None => return Err(entry.clone()),
            }
        }
        Ok(rules)
    }

    /// The same rules, and this machine too.
    pub fn with_loopback(mut self) -> Self {
        let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        self.networks.extend([AddressRange { address: v4, length: 8 }, AddressRange { address: v6, length: 128 }]);
        self
    }

    /// The same rules; if they list `localhost`, that name leads to this machine. Other names do not, whatever they resolve to.
    pub fn with_listed_localhost(mut self) -> Self {
        self.localhost = self.lists_host(LOCALHOST);
        self
    }

    /// The same rules, and the private addresses of this host too.
    pub fn with_host(mut self, host: &str) -> Self {
        self.hosts.push(normal(host));
        self
    }

    /// Whether a connection to this host may use this address of it. A host that is allowed by name may have a private
    /// address. Loopback, link-local (where clouds keep their metadata) and multicast addresses must be allowed as
    /// addresses: a name alone never leads there, except `localhost` where [`Self::with_listed_localhost`] allows it.
    pub fn admits(&self, host: &str, address: IpAddr) -> bool {
        is_public(address)
            || self.lists_address(address)
            || self.lists_host(host) && is_private(address)
            || self.is_allowed_localhost(host) && address.is_loopback()
    }

    /// Whether the operator has named this very host or address, so that it may be reached without TLS.
    pub fn lists(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        self.lists_host(host) || address.is_ok_and(|address| self.lists_address(address))
    }

    fn lists_address(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.holds(address))
    }

    fn lists_host(&self, host: &str) -> bool {
        let host = normal(host);
        self.hosts.contains(&host)
    }

    fn is_allowed_localhost(&self, host: &str) -> bool {
        self.localhost && normal(host) == LOCALHOST
    }

    /// Whether this machine may be reached by this name of it.
    pub fn admits_loopback(&self, host: &str) -> bool {
        self.lists_address(Ipv4Addr::LOCALHOST.into()) || self.is_allowed_localhost(host)
    }
}

impl AddressRange {
    /// Reads an address (`10.1.2.3`) or a network (`10.0.0.0/8`, `fd00::/8`). `None` if the text is neither.
    pub fn read(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().ok()?;
        let length = length.map_or(Some(width(address)), |length| length.parse().ok())?;
        (length <= width(address)).then_some(Self { address, length })
    }

    pub fn holds(self, address: IpAddr) -> bool {
        let (network, address, width) = match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => (network.to_bits().into(), address.to_bits().into(), 32),
            (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits(), address.to_bits(), 128),
            _ => return false,
        };
        // A shift by the whole width is none: a network of length 0 holds everything.
        u128::checked_shr(network ^ address, width - u32::from(self.length)).unwrap_or(0) == 0
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn normal(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Labels of letters, digits and inner dashes; the last one is no number, which would make it an address.
pub fn is_host_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let fits = |label: &str| {
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(letters)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    host.len() <= 253 && host.split('.').all(fits) && !number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(entries: &[&str]) -> OutgoingRules {
        OutgoingRules::read(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn admits(entries: &[&str], host: &str, address: &str) -> bool {
        rules(entries).admits(host, address.parse().unwrap())
    }

    #[test]
    fn without_additions_only_public_addresses_are_reached() {
        assert!(admits(&[], "git.example", "8.8.8.8"));
        for inner in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1"] {
            assert!(!admits(&[], "git.example", inner), "{inner}");
        }
    }

    #[test]
    fn a_network_is_reached_from_its_first_to_its_last_address() {
        for inside in ["10.1.0.0", "10.1.255.255"] {
            assert!(admits(&["10.1.0.0/16"], "x", inside), "{inside}");
        }
        for outside in ["10.0.255.255", "10.2.0.0", "::ffff:10.1.0.1"] {
            assert!(!admits(&["10.1.0.0/16"], "x", outside), "{outside}");
        }
        assert!(admits(&["192.168.0.7"], "x", "192.168.0.7") && !admits(&["192.168.0.7"], "x", "192.168.0.8"));
        assert!(admits(&["fd00:1::/32"], "x", "fd00:1:2::3") && !admits(&["fd00:1::/32"], "x", "fd00:2::3"));
        assert!(admits(&["0.0.0.0/0"], "x", "127.0.0.1") && !admits(&["0.0.0.0/0"], "x", "::1"));
    }

    #[test]
    fn a_host_allowed_by_name_is_never_this_machine_nor_the_metadata_service() {
        for private in ["10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "fd00::1"] {
            assert!(admits(&["git.internal"], "Git.Internal.", private), "{private}");
            assert!(!admits(&["git.internal"], "other.internal", private), "{private}");
        }
        for never in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "224.0.0.1", "::ffff:10.0.0.1"] {
            assert!(!admits(&["git.internal"], "git.internal", never), "{never}");
        }
        assert!(admits(&["git.internal", "127.0.0.1"], "git.internal", "127.0.0.1"), "as an address it may be");
    }

    #[test]
    fn a_listed_localhost_is_this_machine_and_no_other_listed_name_is() {
        let rules = rules(&["localhost", "api.internal"]).with_listed_localhost();
        let admits = |host: &str, address: &str| rules.admits(host, address.parse().unwrap());
        assert!(admits("localhost", "127.0.0.1") && admits("LocalHost.", "::1"));
        assert!(admits("api.internal", "10.0.0.1"));
        for host in ["api.internal", "api.localhost", "127.0.0.1", "other.example"] {
            assert!(!admits(host, "127.0.0.1") && !admits(host, "::1"), "{host}");
        }
        assert!(!admits("localhost", "169.254.169.254"));
        assert!(!rules.lists("127.0.0.1"), "addresses are listed as such");
        let without = self::rules(&["api.internal"]).with_listed_localhost();
        assert!(!without.admits("localhost", "127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_address_network_or_host_is_named() {
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/x",
            "fd00::/129",
            "http://a",
            "a b",
            "*",
            "*.internal",
            "a/8",
            "2130706433",
            "0x7f.1",
            "127.1",
            "-a",
            "a..b",
        ] {
            assert_eq!(OutgoingRules::read(&[bad.to_owned()]), Err(bad.to_owned()), "{bad}");
        }
        assert!(rules(&[]).with_loopback().admits("x", "127.0.0.9".parse().unwrap()));
        assert!(rules(&["127.0.0.1"]).lists("127.0.0.1") && rules(&["::1"]).lists("[::1]"));
        assert!(!rules(&["10.0.0.0/8"]).lists("git.internal") && rules(&["git.internal"]).lists("git.internal."));
    }
}
