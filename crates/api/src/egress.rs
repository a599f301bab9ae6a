//! Egress policies: what a VM may connect to outside, and what it tried.

mod presets;
#[cfg(feature = "openapi")]
mod schema;
mod value;

use std::net::{IpAddr, Ipv4Addr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use presets::EgressPreset;
#[cfg(feature = "openapi")]
pub(crate) use schema::{
    audited_policy_schema, policy_schema, requested_policy_schema, snapshot_policy_schema,
};

/// The most entries of a policy.
pub const MAX_ENTRIES: usize = 64;
/// The most ports of a policy.
pub const MAX_PORTS: usize = 64;
/// The most tries of a report.
pub const MAX_TRIES: usize = 100;
/// The largest policy, in bytes of JSON.
pub const MAX_POLICY_BYTES: usize = 16 << 10;
/// The longest host name, in bytes.
const MAX_NAME_BYTES: usize = 253;
/// The longest label of a host name, in bytes.
const MAX_LABEL_BYTES: usize = 63;

/// What a VM may connect to. As JSON: `"none"`, `"all"`, or `{"allow": [...], "presets": [...], "ports":
/// [...]}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum EgressPolicy {
    /// Nothing.
    #[default]
    None,
    /// All public addresses.
    All,
    /// What a list names.
    Listed(EgressList),
}

/// Networks and names that a VM may connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressList {
    entries: Vec<EgressEntry>,
    /// Sorted by name.
    presets: Vec<EgressPreset>,
    /// Sorted; `None` means every port.
    ports: Option<Vec<u16>>,
}

/// An entry of an [`EgressList`]. Names are in lower case and without a final dot.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EgressEntry {
    Network {
        address: Ipv4Addr,
        prefix_len: u8,
    },
    Name(String),
    /// All names below this one, but not the name itself.
    Below(String),
}

/// Why a value is not an egress policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEgressPolicy {
    /// The value has another shape.
    #[error(
        "an egress policy is \"none\", \"all\" or {{\"allow\": [...], \"presets\": [...], \"ports\": [...]}}, not {0}"
    )]
    Shape(String),
    /// An entry of `allow` is not valid.
    #[error(
        "{0:?} cannot be allowed; give an IPv4 network such as 203.0.113.0/24, an address, a host name such as \
         api.example.com, or *.example.com for all names below it"
    )]
    Entry(String),
    /// An IPv4 network has bits after its prefix.
    #[error("{0:?} is not a network, since its address has bits after the prefix; give {1}")]
    HostBits(String, String),
    /// An IPv6 address or network.
    #[error("{0:?} cannot be allowed, since VMs have IPv4 only; give an IPv4 network or a host name")]
    Ipv6(String),
    /// There is no such preset.
    #[error("{0} is not a preset; the presets are {names}", names = preset_names())]
    Preset(String),
    /// A port is not valid.
    #[error("`ports` has {0}; a port is a whole number from 1 to 65535")]
    Port(String),
    /// A list is empty or too long.
    #[error("`{field}` has {count} entries; give 1 to {limit}{hint}")]
    Count {
        /// The name of the list.
        field: &'static str,
        /// How many entries it has.
        count: usize,
        /// The most entries that it may have.
        limit: usize,
        /// What to give in place of an empty list.
        hint: &'static str,
    },
    /// The policy is too large.
    #[error(
        "the egress policy has {0} bytes; at most {MAX_POLICY_BYTES} are possible, so give fewer entries"
    )]
    TooLarge(usize),
}

/// Whether a try to connect was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EgressVerdict {
    /// The connection was made.
    Allowed,
    /// The policy of the VM or of the server forbids it.
    Refused,
    /// It is allowed, but the target did not answer.
    Failed,
}

/// A try to connect or to look up a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EgressTry {
    /// When it was tried.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The name of the target; null if the VM used an address.
    #[cfg_attr(feature = "openapi", schema(example = "api.example.com"))]
    pub name: Option<String>,
    /// The address of the target; null if a name was refused before it was looked up.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "203.0.113.7"))]
    pub address: Option<IpAddr>,
    /// The port of the target; null for the look-up of a name.
    #[cfg_attr(feature = "openapi", schema(maximum = 65_535, example = 443))]
    pub port: Option<u16>,
    /// The outcome.
    pub verdict: EgressVerdict,
    /// Why it was refused or failed; null if it was allowed.
    pub reason: Option<String>,
    /// Whether git on the server tried it, for a repository in the VM.
    #[serde(default)]
    pub git_relay: bool,
}

/// What a VM may connect to, and what it tried. Answer of `GET /api/swarm/vm/{pid}/egress`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EgressReport {
    /// The policy.
    #[cfg_attr(feature = "openapi", schema(schema_with = policy_schema))]
    pub policy: EgressPolicy,
    /// The connections that are open.
    #[cfg_attr(feature = "openapi", schema(example = 2))]
    pub open_connections: u64,
    /// The bytes that the VM sent over its connections, since it was booted or the egress process was started again.
    #[cfg_attr(feature = "openapi", schema(example = 4096))]
    pub sent_bytes: u64,
    /// The bytes that the VM received over its connections, likewise.
    #[cfg_attr(feature = "openapi", schema(example = 4096))]
    pub received_bytes: u64,
    /// The tries that were refused, likewise; those of git on the server since this server was started.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub refused: u64,
    /// The last 100 tries, oldest first.
    pub tries: Vec<EgressTry>,
}

impl EgressPolicy {
    /// The policy that allows these networks, addresses and host names, at every port.
    ///
    /// # Errors
    /// An entry is not valid, or there are none or too many.
    pub fn listing<S: AsRef<str>>(allow: &[S]) -> Result<Self, InvalidEgressPolicy> {
        let allow: Vec<&str> = allow.iter().map(AsRef::as_ref).collect();
        Self::try_from(serde_json::json!({"allow": allow}))
    }

    /// This policy with presets besides. `all` allows them anyway.
    #[must_use]
    pub fn with_presets(self, presets: &[EgressPreset]) -> Self {
        let mut list = match self {
            Self::None if presets.is_empty() => return Self::None,
            Self::None => EgressList { entries: Vec::new(), presets: Vec::new(), ports: None },
            Self::All => return Self::All,
            Self::Listed(list) => list,
        };
        list.presets.extend(presets);
        list.presets.sort_unstable_by_key(|preset| preset.name);
        list.presets.dedup();
        Self::Listed(list)
    }

    /// The ports of a list. `None` means every port; other policies have no ports.
    pub fn ports(&self) -> Option<&[u16]> {
        match self {
            Self::None | Self::All => None,
            Self::Listed(list) => list.ports.as_deref(),
        }
    }

    /// This list with these ports in place of its own; `None` means every port. Other policies stay as they are.
    ///
    /// # Errors
    /// A port is not valid, or there are none or too many.
    pub fn with_ports(self, ports: Option<&[u16]>) -> Result<Self, InvalidEgressPolicy> {
        let Self::Listed(list) = self else { return Ok(self) };
        let mut value = Value::from(Self::Listed(list));
        if let Value::Object(fields) = &mut value {
            fields.insert("ports".to_owned(), ports.into());
        }
        Self::try_from(value)
    }

    /// Whether this policy allows nothing that the other one does not. `false` also where only a comparison of the entries
    /// by their meaning would show it.
    pub fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, _) | (_, Self::All) => true,
            (_, Self::None) | (Self::All, _) => false,
            (Self::Listed(list), Self::Listed(other)) => list.is_within(other),
        }
    }

    /// Its size as JSON, in bytes.
    pub fn json_bytes(&self) -> usize {
        Value::from(self.clone()).to_string().len()
    }

    /// Whether this name may be looked up.
    pub fn permits_lookup(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Listed(list) => list.names(name),
        }
    }

    /// Whether the policy lists this very name, rather than allowing it by a wildcard or with all others.
    pub fn lists_name(&self, name: &str) -> bool {
        match self {
            Self::None | Self::All => false,
            Self::Listed(list) => {
                let is_listed =
                    |entry: &EgressEntry| matches!(entry, EgressEntry::Name(listed) if listed == name);
                list.entries.iter().any(is_listed) || list.presets.iter().any(|preset| preset.names(name))
            }
        }
    }

    /// Whether a connection to this name and port is permitted.
    pub fn permits_name(&self, name: &str, port: u16) -> bool {
        self.permits_lookup(name) && self.permits_port(port)
    }

    /// Whether a connection to this host of a URL, a name or an address, is permitted. IPv6 addresses are permitted by `all`
    /// only.
    pub fn permits_host(&self, host: &str, port: u16) -> bool {
        match host.parse() {
            Ok(IpAddr::V4(address)) => self.permits_address(address, port),
            Ok(IpAddr::V6(_)) => *self == Self::All,
            Err(_) => self.permits_name(host, port),
        }
    }

    /// Whether a connection to this address and port is permitted, for a target without a name.
    pub fn permits_address(&self, address: Ipv4Addr, port: u16) -> bool {
        let permitted = match self {
            Self::None => false,
            Self::All => true,
            Self::Listed(list) => list.entries.iter().any(|entry| entry.contains(address)),
        };
        permitted && self.permits_port(port)
    }

    fn permits_port(&self, port: u16) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Listed(list) => list.ports.as_ref().is_none_or(|ports| ports.contains(&port)),
        }
    }
}

impl EgressList {
    fn is_within(&self, other: &Self) -> bool {
        let ports = match (&self.ports, &other.ports) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(ports), Some(others)) => ports.iter().all(|port| others.contains(port)),
        };
        ports
            && self.entries.iter().all(|entry| other.entries.contains(entry))
            && self.presets.iter().all(|preset| other.presets.contains(preset))
    }

    fn names(&self, name: &str) -> bool {
        let name = normalized(name);
        self.entries.iter().any(|entry| entry.names(&name))
            || self.presets.iter().any(|preset| preset.names(&name))
    }
}

impl EgressEntry {
    fn parse(text: &str) -> Result<Self, InvalidEgressPolicy> {
        let wrong = || InvalidEgressPolicy::Entry(text.to_owned());
        if text.contains(':') {
            return Err(InvalidEgressPolicy::Ipv6(text.to_owned()));
        }
        if let Some((address, length)) = text.split_once('/') {
            let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
            let prefix_len = length.parse().ok().filter(|length| *length <= 32).ok_or_else(wrong)?;
            let network = Ipv4Addr::from_bits(address.to_bits() & mask(prefix_len));
            if network != address {
                let given = format!("{network}/{prefix_len}");
                return Err(InvalidEgressPolicy::HostBits(text.to_owned(), given));
            }
            return Ok(Self::Network { address, prefix_len });
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Network { address, prefix_len: 32 });
        }
        let name = normalized(text);
        match name.strip_prefix("*.") {
            Some(parent) if is_name(parent) => Ok(Self::Below(parent.to_owned())),
            None if is_name(&name) => Ok(Self::Name(name)),
            _ => Err(wrong()),
        }
    }

    fn names(&self, name: &str) -> bool {
        match self {
            Self::Network { .. } => false,
            Self::Name(own) => own == name,
            Self::Below(parent) => {
                name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
        }
    }

    fn contains(&self, other: Ipv4Addr) -> bool {
        match self {
            Self::Network { address, prefix_len } => other.to_bits() & mask(*prefix_len) == address.to_bits(),
            Self::Name(_) | Self::Below(_) => false,
        }
    }
}

impl std::fmt::Display for EgressEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Network { address, prefix_len: 32 } => write!(f, "{address}"),
            Self::Network { address, prefix_len } => write!(f, "{address}/{prefix_len}"),
            Self::Name(name) => f.write_str(name),
            Self::Below(parent) => write!(f, "*.{parent}"),
        }
    }
}

fn mask(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0)
}

fn preset_names() -> String {
    let names: Vec<&str> = EgressPreset::ALL.iter().map(|preset| preset.name).collect();
    names.join(", ")
}

/// A host name in lower case without a final dot, for comparisons.
pub fn normalized(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether a normalized text can be the name of a host. An invalid address, such as `10.0.0.256`, cannot.
pub fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
    };
    let ends_in_number =
        text.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    text.len() <= MAX_NAME_BYTES && text.split('.').all(is_label) && !ends_in_number
}

#[cfg(test)]
mod tests;
