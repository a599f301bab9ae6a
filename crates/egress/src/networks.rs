//! Sets of networks.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Networks and single addresses. IPv4 addresses and networks are compared as such, also where they are written as IPv6.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Parses CIDRs and addresses. An entry that is neither is left out: it contains nothing.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Self {
        entries.iter().filter_map(|entry| parse_network(entry.as_ref())).collect()
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self(networks.into_iter().map(canonical).collect())
    }
}

pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

/// Converts an IPv6 network of IPv4-mapped addresses to the IPv4 network. Returns every other network unchanged.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(six) = network else { return network };
    let length = six.prefix_len().checked_sub(96);
    let four =
        length.zip(six.network().to_ipv4_mapped()).map(|(length, address)| Ipv4Net::new(address, length));
    four.and_then(Result::ok).map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn networks_addresses_and_their_mapped_spellings_are_compared() {
        let networks =
            Networks::parse(&["10.0.0.0/8", "192.0.2.7", "::ffff:172.16.0.0/108", "fd00::/8", "nonsense"]);
        for (address, contained) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("172.31.0.1", true),
            ("172.32.0.1", false),
            ("fd12::1", true),
            ("::1", false),
        ] {
            assert_eq!(networks.contains(address.parse().unwrap()), contained, "{address}");
        }
        assert!(Networks::parse(&["nonsense"]).is_empty());
    }

    proptest! {
        #[test]
        fn a_mapped_network_is_its_ipv4_network(bits: u32, other: u32, length in 0..=32_u8) {
            let network = Ipv4Addr::from(bits);
            let plain = Networks::parse(&[format!("{network}/{length}")]);
            let mapped = Networks::parse(&[format!("{}/{}", network.to_ipv6_mapped(), length + 96)]);
            prop_assert_eq!(plain.contains(network.into()), true);
            for address in [network, Ipv4Addr::from(other)] {
                prop_assert_eq!(plain.contains(address.into()), mapped.contains(address.into()));
                prop_assert_eq!(plain.contains(address.into()), plain.contains(address.to_ipv6_mapped().into()));
            }
        }
    }
}
