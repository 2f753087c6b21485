//! Which addresses of the internet a server may connect to on behalf of another party. Everything that is not plainly
//! public is refused: this machine, its neighbours, carriers' inner networks, many at once, and v6 addresses that embed
//! a v4 one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks that outside parties may not name, of the registries of special-purpose addresses (RFC 6890 and its
/// successors).
const V4_REFUSED: [([u8; 4], u32); 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 31, 196, 0], 24),
    ([192, 52, 193, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    // Multicast, the future, and broadcast.
    ([224, 0, 0, 0], 3),
];

/// Public v6 is given out of one block; these parts of it are not public after all. They tunnel to v4 addresses
/// (Teredo in `2001::/23`, 6to4), or are for examples.
const V6_PUBLIC: (u16, u32) = (0x2000, 3);
const V6_REFUSED: [([u16; 2], u32); 4] =
    [([0x2001, 0], 23), ([0x2001, 0xdb8], 32), ([0x2002, 0], 16), ([0x3fff, 0], 20)];

pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// An address that networks of an organisation's own use inside (RFC 1918, 6598 and 4193): neither this machine, nor its
/// link, nor many at once.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_private() || within(address.to_bits(), 0x6440_0000, 10),
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !V4_REFUSED.iter().any(|(network, length)| within(bits, u32::from_be_bytes(*network), *length))
}

/// What maps a v4 address (`::ffff:0:0/96`, `64:ff9b::/96`) is outside the public block, whichever address it maps.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let bits = u32::from(first) << 16 | u32::from(second);
    within(bits, u32::from(V6_PUBLIC.0) << 16, V6_PUBLIC.1)
        && !V6_REFUSED
            .iter()
            .any(|([first, second], length)| within(bits, u32::from(*first) << 16 | u32::from(*second), *length))
}

fn within(bits: u32, network: u32, length: u32) -> bool {
    (bits ^ network) >> (32 - length) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn the_first_and_the_last_address_of_each_refused_network_are_refused() {
        for network in [
            ["0.0.0.0", "0.255.255.255"],
            ["10.0.0.0", "10.255.255.255"],
            ["100.64.0.0", "100.127.255.255"],
            ["127.0.0.1", "127.255.255.255"],
            ["169.254.0.0", "169.254.169.254"],
            ["172.16.0.0", "172.31.255.255"],
            ["192.168.0.0", "192.168.255.255"],
            ["198.18.0.0", "198.19.255.255"],
            ["203.0.113.0", "203.0.113.255"],
            ["224.0.0.1", "239.255.255.255"],
            ["240.0.0.0", "255.255.255.255"],
            ["::", "::1"],
            ["fc00::", "fdff:ffff::1"],
            ["fe80::", "febf::1"],
            ["fec0::1", "ff02::1"],
            ["::ffff:8.8.8.8", "::ffff:127.0.0.1"],
            ["::7f00:1", "64:ff9b::7f00:1"],
            ["64:ff9b:1::1", "100::1"],
            ["2001::1", "2001:1ff:ffff::1"],
            ["2001:db8::1", "2002:7f00:1::1"],
            ["3fff::1", "3fff:fff::1"],
            ["5f00::1", "4000::1"],
        ] {
            assert!(!network.into_iter().any(public), "{network:?}");
        }
    }

    #[test]
    fn their_neighbours_are_public() {
        for address in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2001:db7::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700::1111",
            "3ffe::1",
        ] {
            assert!(public(address), "{address}");
        }
    }

    proptest! {
        #[test]
        fn what_the_standard_library_knows_to_be_special_is_refused(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_multicast() || address.is_broadcast() || address.is_documentation()
                || address.is_unspecified();
            prop_assert!(!special || !is_public(address.into()));
            prop_assert!(!is_public(address.to_ipv6_mapped().into()));
            prop_assert!(!is_public(address.to_ipv6_compatible().into()));
        }
    }
}
