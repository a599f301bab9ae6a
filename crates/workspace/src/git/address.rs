//! Which addresses may be connected to: by git, and by other code that connects to a host of a caller's choice.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Private hosts and networks that the operator allows. Public addresses are always allowed.
#[derive(Debug, Clone, Default)]
pub struct AllowedAddresses {
    networks: Vec<IpNet>,
    hosts: Vec<String>,
}

impl AllowedAddresses {
    /// Parses CIDRs and addresses; every other entry is a host name.
    pub fn parse(entries: &[String]) -> Self {
        let mut allowed = Self::default();
        for entry in entries {
            match (entry.parse::<IpNet>(), entry.parse::<IpAddr>()) {
                (Ok(network), _) => allowed.networks.push(network),
                (_, Ok(address)) => allowed.networks.push(address.into()),
                _ => allowed.hosts.push(normalized(entry)),
            }
        }
        allowed
    }

    /// Whether this host may be connected to at this address.
    pub fn permits(&self, host: &str, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address)
            || self.networks.iter().any(|network| network.contains(&address))
            || self.has_host(host)
    }

    /// Whether the operator allowed this host by name.
    pub fn has_host(&self, host: &str) -> bool {
        self.hosts.contains(&normalized(host))
    }

    /// Whether the operator allowed any networks. Every host name may resolve into them.
    pub fn has_networks(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether this address is in an allowed network.
    pub fn has_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// A host name in lower case without final dots, for comparisons.
fn normalized(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether an address is globally reachable (RFC 6890 and its registries).
fn is_public(address: IpAddr) -> bool {
    match address {
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
    !special
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
            let address: IpAddr = text.parse().unwrap();
            assert!(!AllowedAddresses::default().permits("host", address), "{text}");
        }
        for text in
            ["1.1.1.1", "140.82.121.3", "172.32.0.1", "2606:4700::1111", "2a00:1450::1", "64:ff9b::101:101"]
        {
            let address: IpAddr = text.parse().unwrap();
            assert!(AllowedAddresses::default().permits("host", address), "{text}");
        }
    }

    #[test]
    fn allowed_hosts_and_networks_are_permitted() {
        let allowed = AllowedAddresses::parse(&[
            "10.0.0.0/8".to_owned(),
            "127.0.0.1".to_owned(),
            "Git.Example".to_owned(),
        ]);
        let reaches = |host: &str, address: &str| allowed.permits(host, address.parse().unwrap());
        assert!(reaches("x", "10.9.8.7") && reaches("x", "127.0.0.1") && reaches("x", "::ffff:10.1.1.1"));
        assert!(reaches("git.example.", "192.168.0.1"));
        assert!(!reaches("x", "127.0.0.2") && !reaches("other.example", "192.168.0.1"));
    }
}
