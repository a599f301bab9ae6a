//! Where webhooks may lead.

use std::net::IpAddr;

use clap::Args;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Where webhooks may lead.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Webhooks {
    /// A private network (CIDR), address or host that webhooks may reach besides the public ones, also without https; may
    /// be given several times.
    #[arg(long, env = "SKEP_WEBHOOK_ALLOW", value_name = "HOST|CIDR", value_delimiter = ',', value_parser = reachable)]
    #[serde(default)]
    pub(crate) webhook_allow: Vec<String>,
}

/// A network, an address, or the name of a host.
fn reachable(text: &str) -> Result<String, String> {
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = (1..254).contains(&text.len()) && text.bytes().all(named) && !text.starts_with(['-', '.']);
    // What looks like an address and is none would be a name that no host has.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_address = text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok();
    if is_address || (is_name && !digits) {
        return Ok(text.to_owned());
    }
    Err("give a network such as 10.0.0.0/8, an address, or the name of a host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_addresses_and_hosts_are_taken() {
        for good in ["10.0.0.0/8", "127.0.0.1", "::1", "fd00::/8", "hooks.internal", "localhost"] {
            assert_eq!(reachable(good).as_deref(), Ok(good));
        }
        for wrong in ["", "10.0.0", "10.0.0.0/33", "-x", ".x", "a b", "http://x", "x/8"] {
            reachable(wrong).unwrap_err();
        }
    }
}
