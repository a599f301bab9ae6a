//! Settings for connections of VMs to hosts outside. They apply to all VMs, whatever their own policies allow.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::host_or_network;

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Egress {
    /// Whether VMs may get policies by which they reach hosts outside: `off` means that none reaches anything.
    #[arg(long, env = "SKEP_EGRESS", value_name = "WHEN", default_value = "on")]
    pub(crate) egress: EgressUse,
    /// Private network (CIDR), address or host name that VMs may reach, besides public ones, if their policies allow it;
    /// may be given several times.
    #[arg(long, env = "SKEP_EGRESS_ALLOW", value_name = "HOST|CIDR", value_delimiter = ',', value_parser = host_or_network)]
    #[serde(default)]
    pub(crate) egress_allow: Vec<String>,
    /// Network (CIDR), address or host name that no VM may reach; may be given several times.
    #[arg(long, env = "SKEP_EGRESS_DENY", value_name = "HOST|CIDR", value_delimiter = ',', value_parser = host_or_network)]
    #[serde(default)]
    pub(crate) egress_deny: Vec<String>,
    /// Network (CIDR) that counts as public for VMs; may be given several times.
    #[arg(long, env = "SKEP_EGRESS_PUBLIC", value_name = "CIDR", value_delimiter = ',', value_parser = network)]
    #[serde(default)]
    pub(crate) egress_public: Vec<String>,
    /// Name server for the names that VMs connect to; may be given several times [default: those of /etc/resolv.conf].
    #[arg(long, env = "SKEP_EGRESS_RESOLVER", value_name = "ADDRESS:PORT", value_delimiter = ',')]
    #[serde(default)]
    pub(crate) egress_resolver: Vec<SocketAddr>,
}

/// Whether VMs may reach hosts outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EgressUse {
    /// By the policy of each VM.
    On,
    /// Never.
    Off,
}

impl Egress {
    /// The arguments of the egress process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let flags = |flag: &'static str, values: &[String]| -> Vec<String> {
            values.iter().flat_map(|value| [flag.to_owned(), value.clone()]).collect()
        };
        let resolvers: Vec<String> = self.egress_resolver.iter().map(ToString::to_string).collect();
        [
            vec!["egress-process".to_owned()],
            flags("--allow", &self.egress_allow),
            flags("--deny", &self.egress_deny),
            flags("--public", &self.egress_public),
            flags("--resolver", &resolvers),
        ]
        .concat()
    }
}

fn network(text: &str) -> Result<String, String> {
    match text.parse::<ipnet::IpNet>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("give a network such as 203.0.113.0/24".to_owned()),
    }
}
