//! The operator's rules: which addresses may be connected to at all, by VMs, git and webhooks.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use crate::{allowlist::Allowlist, networks::Networks, public::is_public};

/// Any port: nothing is sent.
const PROBE_PORT: u16 = 9;

#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Hosts and networks that may be connected to although they are not public.
    pub allow: Allowlist,
    /// Hosts and networks that may not be connected to. Comes before `allow`.
    pub deny: Allowlist,
    /// Networks that count as public.
    pub public: Networks,
}

/// Which addresses a kind of connection may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Public addresses, and those that the operator allows.
    PublicOrListed,
    /// Only those that the operator allows, as for connections without encryption.
    Listed,
}

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefusal {
    #[error("the operator forbids it")]
    Denied,
    #[error("the address belongs to the server's machine")]
    OwnAddress,
    #[error("the address is not public")]
    NotPublic,
}

impl Rules {
    /// Whether this address of a name, or without a name, may be connected to.
    pub fn judge(&self, name: Option<&str>, address: IpAddr) -> Result<(), AddressRefusal> {
        let address = address.to_canonical();
        if self.deny.has_address(address) || name.is_some_and(|name| self.deny.names(name)) {
            return Err(AddressRefusal::Denied);
        }
        if self.lists(name, address) {
            return Ok(());
        }
        if !is_public(address) && !self.public.contains(address) {
            return Err(AddressRefusal::NotPublic);
        }
        if is_own(address) { Err(AddressRefusal::OwnAddress) } else { Ok(()) }
    }

    /// Whether a host may be connected to at this address.
    pub fn permits(&self, host: &str, address: IpAddr, reach: Reach) -> bool {
        let in_reach = reach == Reach::PublicOrListed || self.lists(Some(host), address);
        in_reach && self.judge(Some(host), address).is_ok()
    }

    /// Whether the operator forbids hosts by name.
    pub fn deny_hosts(&self) -> bool {
        self.deny.has_hosts()
    }

    /// Whether the operator forbids this host, by its name or as a literal address.
    pub fn denies_host(&self, host: &str) -> bool {
        self.deny.names(host)
    }

    /// Whether the operator allows this target, even if it is the machine itself.
    pub fn lists(&self, name: Option<&str>, address: IpAddr) -> bool {
        self.allow.has_address(address) || name.is_some_and(|name| self.allow.names(name))
    }
}

/// Whether this machine has the address: packets to it would have it as their source as well.
fn is_own(address: IpAddr) -> bool {
    let unspecified = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    };
    let source = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        // Sends nothing, only selects the route.
        socket.connect((address, PROBE_PORT))?;
        socket.local_addr()
    });
    // Without a route the address cannot be reached, and the connection fails.
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_public_and_listed_addresses_are_permitted() {
        let judge = |rules: &Rules, address: &str| rules.judge(None, address.parse().unwrap());
        let none = Rules::default();
        assert_eq!(judge(&none, "1.1.1.1"), Ok(()));
        for private in
            ["127.0.0.1", "0.0.0.0", "10.1.2.3", "169.254.169.254", "203.0.113.7", "::ffff:10.0.0.1"]
        {
            assert_eq!(judge(&none, private), Err(AddressRefusal::NotPublic), "{private}");
        }
        let rules = Rules {
            allow: Allowlist::parse(&["10.1.0.0/16"]),
            deny: Allowlist::parse(&["10.1.2.0/24", "1.1.1.1", "bad.example"]),
            public: Networks::parse(&["203.0.113.0/24", "127.0.0.0/8"]),
        };
        assert_eq!(judge(&rules, "10.1.3.3"), Ok(()));
        assert_eq!(judge(&rules, "203.0.113.7"), Ok(()));
        assert_eq!(judge(&rules, "10.1.2.3"), Err(AddressRefusal::Denied));
        assert_eq!(judge(&rules, "1.1.1.1"), Err(AddressRefusal::Denied));
        let named = rules.judge(Some("bad.example"), "8.8.8.8".parse().unwrap());
        assert_eq!(named, Err(AddressRefusal::Denied));
        // An address of this machine is refused also in a network that counts as public.
        assert_eq!(judge(&rules, "127.0.0.1"), Err(AddressRefusal::OwnAddress));
        let listed = Rules { allow: Allowlist::parse(&["127.0.0.1"]), ..rules };
        assert_eq!(judge(&listed, "127.0.0.1"), Ok(()));
    }

    #[test]
    fn a_host_is_allowed_by_name() {
        let rules = Rules { allow: Allowlist::parse(&["registry.internal"]), ..Rules::default() };
        let address = "10.0.0.5".parse().unwrap();
        assert_eq!(rules.judge(Some("registry.internal"), address), Ok(()));
        assert_eq!(rules.judge(Some("other.internal"), address), Err(AddressRefusal::NotPublic));
        assert_eq!(rules.judge(None, address), Err(AddressRefusal::NotPublic));
    }

    #[test]
    fn connections_that_reach_only_what_is_listed_need_an_entry() {
        let rules = Rules { allow: Allowlist::parse(&["10.0.0.0/8", "Git.Example"]), ..Rules::default() };
        for reach in [Reach::PublicOrListed, Reach::Listed] {
            let permits = |host: &str, address: &str| rules.permits(host, address.parse().unwrap(), reach);
            assert!(permits("x", "10.9.8.7") && permits("x", "::ffff:10.1.1.1"));
            assert!(permits("git.example.", "192.168.0.1"));
            assert!(!permits("x", "127.0.0.2") && !permits("other.example", "192.168.0.1"));
            assert_eq!(permits("x", "1.1.1.1"), reach == Reach::PublicOrListed);
        }
    }

    #[test]
    fn what_the_operator_forbids_is_refused_although_it_is_listed() {
        let rules = Rules { allow: Allowlist::parse(&["git.example", "10.0.0.0/8"]), ..Rules::default() };
        let refusing = Rules { deny: Allowlist::parse(&["Git.Example", "10.0.0.1"]), ..rules.clone() };
        for (host, address) in [("git.example", "1.1.1.1"), ("git.example.", "10.0.0.2"), ("x", "10.0.0.1")] {
            let address = address.parse().unwrap();
            assert!(rules.permits(host, address, Reach::Listed), "the control: {host} {address}");
            assert!(!refusing.permits(host, address, Reach::Listed), "{host} {address}");
        }
        assert!(refusing.permits("x", "10.0.0.2".parse().unwrap(), Reach::Listed));
    }

    proptest! {
        #[test]
        fn without_rules_only_public_addresses_are_permitted(host in "[a-z0-9.]{0,20}", address: IpAddr) {
            let none = Rules::default();
            prop_assert_eq!(none.permits(&host, address, Reach::PublicOrListed), is_public(address));
            prop_assert!(!none.permits(&host, address, Reach::Listed));
        }
    }
}
