//! Public addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The metadata service of Azure. The address is public by its registry, and each machine there reaches its own service.
const AZURE_METADATA: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Whether an address is globally reachable (RFC 6890 and its registries) and no metadata service of a cloud. An IPv4
/// address may be given as IPv6.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224.., ..)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (192, 168, _)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !special && address != AZURE_METADATA
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    // 64:ff9b::/96 (NAT64) leads to the IPv4 address in its last 32 bits.
    if [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0] {
        let [g, h] = [g.to_be_bytes(), h.to_be_bytes()];
        return is_public_v4(Ipv4Addr::new(g[0], g[1], h[0], h[1]));
    }
    let tunnel = a == 0x2002 || (a == 0x2001 && b < 0x200) || (a == 0x2001 && b == 0xdb8) || a == 0x3fff;
    (0x2000..0x4000).contains(&a) && !tunnel
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_private_is_public() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.0.8",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fec0::1",
            "::7f00:1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "168.63.129.17",
            "140.82.121.3",
            "172.32.0.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_the_standard_library_knows_as_special_is_not_public(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let special = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_documentation()
                || address.is_unspecified();
            prop_assert!(!special || !is_public(address.into()));
        }

        #[test]
        fn an_ipv4_address_in_an_ipv6_address_is_judged_as_itself(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let translated = Ipv6Addr::from((0x64_ff9b_u128 << 96) | u128::from(bits));
            prop_assert_eq!(is_public(address.into()), is_public(address.to_ipv6_mapped().into()));
            prop_assert_eq!(is_public(address.into()), is_public(translated.into()));
        }

        #[test]
        fn only_global_unicast_is_public(bits: u128) {
            let address = Ipv6Addr::from(bits);
            let embeds_ipv4 = address.to_ipv4_mapped().is_some() || bits >> 32 == 0x64_ff9b << 64;
            prop_assert!(!is_public(address.into()) || embeds_ipv4 || bits >> 125 == 1);
        }
    }
}
