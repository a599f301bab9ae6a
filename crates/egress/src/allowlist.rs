//! Lists of hosts and networks that an operator allows or forbids.

use std::net::IpAddr;

use crate::networks::{Networks, parse_network};

/// The longest host name, in bytes.
const MAX_NAME_BYTES: usize = 253;

/// Hosts and networks that the operator names.
#[derive(Debug, Clone, Default)]
pub struct Allowlist {
    networks: Networks,
    hosts: Vec<String>,
}

/// An entry of an allowlist is neither a network nor an address nor a host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give a network such as 10.0.0.0/8, an address, or the name of a host")]
pub struct InvalidEntry;

impl Allowlist {
    /// Parses CIDRs and addresses; every other entry is a host name.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Self {
        let hosts = entries.iter().map(AsRef::as_ref).filter(|entry| parse_network(entry).is_none());
        Self { networks: Networks::parse(entries), hosts: hosts.map(normalized).collect() }
    }

    /// Whether the list names this host: by its name or, if it is a literal address, by a network.
    pub fn names(&self, host: &str) -> bool {
        literal_address(host).map_or_else(|| self.has_host(host), |address| self.networks.contains(address))
    }

    /// Whether a host may turn out to be listed once its name is resolved.
    pub fn may_name(&self, host: &str) -> bool {
        self.names(host) || (literal_address(host).is_none() && !self.networks.is_empty())
    }

    pub fn has_address(&self, address: IpAddr) -> bool {
        self.networks.contains(address)
    }

    /// Whether any host is listed by its name.
    pub fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    fn has_host(&self, host: &str) -> bool {
        self.hosts.contains(&normalized(host))
    }
}

/// The address of a host that is a literal one, with or without the brackets of a URL.
pub fn literal_address(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host).parse().ok()
}

/// Checks an entry of an allowlist: a network, an address or a host name.
///
/// # Errors
/// [`InvalidEntry`] for every other text.
pub fn check_entry(text: &str) -> Result<(), InvalidEntry> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = (1..=MAX_NAME_BYTES).contains(&text.len())
        && text.bytes().all(is_valid)
        && !text.starts_with(['-', '.']);
    // An invalid address, such as 10.0.0.256, must not pass as a host name.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if parse_network(text).is_some() || (is_name && !is_number) { Ok(()) } else { Err(InvalidEntry) }
}

/// A host name in lower case without final dots, for comparisons.
fn normalized(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_is_named_by_its_name_or_its_literal_address() {
        let allowed = Allowlist::parse(&["10.0.0.0/8", "fd00::/8", "git.example"]);
        for host in ["git.example", "GIT.example.", "10.1.1.1", "[fd00::1]", "fd00::1", "::ffff:10.0.0.1"] {
            assert!(allowed.names(host) && allowed.may_name(host), "{host}");
        }
        assert!(!allowed.names("other.example") && allowed.may_name("other.example"));
        assert!(!Allowlist::parse(&["git.example"]).may_name("other.example"));
        for host in ["192.168.0.1", "[::1]"] {
            assert!(!allowed.names(host) && !allowed.may_name(host), "{host}");
        }
    }

    #[test]
    fn an_entry_is_a_network_an_address_or_a_name() {
        for good in ["10.0.0.0/8", "fd00::/8", "127.0.0.1", "::1", "git.example", "a-b_c.internal", "1a"] {
            assert_eq!(check_entry(good), Ok(()), "{good}");
        }
        for wrong in
            ["", "10.0.0.256", "10.0.0.0/33", "-x", ".x", "a b", "https://x", "ü.example", &"a".repeat(254)]
        {
            assert_eq!(check_entry(wrong), Err(InvalidEntry), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_entry_that_is_accepted_names_itself(entry in "[a-zA-Z0-9._:/-]{1,20}") {
            if check_entry(&entry).is_ok() && parse_network(&entry).is_none() {
                prop_assert!(Allowlist::parse(&[&entry]).names(&entry));
            }
        }
    }
}
