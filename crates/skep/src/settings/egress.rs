//! Settings for connections of VMs to hosts outside. They apply to all VMs, whatever their own policies allow.

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use skep_vm_egress::Limits;

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
    /// Network (CIDR), address or host name that neither VMs nor git nor webhooks may reach; may be given several times.
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
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) egress_limits: EgressLimits,
}

/// The limits of connections of VMs. The egress process has the same options.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct EgressLimits {
    /// Connections of a VM to hosts outside.
    #[arg(long, env = "SKEP_EGRESS_CONNECTIONS", value_name = "NUMBER", default_value = "1024")]
    pub(crate) egress_connections: NonZeroU32,
    /// Connections of all VMs to hosts outside; further ones wait.
    #[arg(long, env = "SKEP_EGRESS_CONNECTIONS_OF_ALL", value_name = "NUMBER", default_value = "8000")]
    pub(crate) egress_connections_of_all: NonZeroU32,
    /// New connections of a VM to hosts outside in a second; five times as many at once.
    #[arg(long, env = "SKEP_EGRESS_NEW_CONNECTIONS", value_name = "NUMBER", default_value = "200")]
    pub(crate) egress_new_connections: NonZeroU32,
    /// Megabits in a second of a VM to and from hosts outside, in each direction.
    #[arg(long, env = "SKEP_EGRESS_MBIT", value_name = "NUMBER", default_value = "250")]
    pub(crate) egress_mbit: NonZeroU32,
    /// Seconds after which a connection of a VM to a host outside ends if no bytes were transferred.
    #[arg(long, env = "SKEP_EGRESS_IDLE", value_name = "SECONDS", default_value = "900")]
    pub(crate) egress_idle: NonZeroU32,
}

impl EgressLimits {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections: self.egress_connections,
            new_connections: self.egress_new_connections,
            mbit: self.egress_mbit,
            all_connections: self.egress_connections_of_all,
            idle: Duration::from_secs(self.egress_idle.get().into()),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let Self {
            egress_connections,
            egress_connections_of_all,
            egress_new_connections,
            egress_mbit,
            egress_idle,
        } = self;
        [
            ("--egress-connections", egress_connections),
            ("--egress-connections-of-all", egress_connections_of_all),
            ("--egress-new-connections", egress_new_connections),
            ("--egress-mbit", egress_mbit),
            ("--egress-idle", egress_idle),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.to_string()])
        .collect()
    }
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
        [
            vec!["egress-process".to_owned()],
            flags("--allow", &self.egress_allow),
            flags("--deny", &self.egress_deny),
            flags("--public", &self.egress_public),
            self.egress_limits.arguments(),
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
