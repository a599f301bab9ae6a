//! Restrictions on the connections of git, and the credentials that it sends.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::egress::EgressPolicy;

/// The time limit of a git command that uses the network.
pub const NETWORK_LIMIT: Duration = Duration::from_secs(600);

/// The addresses that git may connect to: the public ones, except for those of its machine, and those that the operator
/// allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitReach {
    /// Networks and addresses, which may be private, and names of hosts that may have such addresses. Other ports than the
    /// usual ones are reached at these only.
    pub allow: Vec<String>,
    /// Networks, addresses and names of hosts that are never connected to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Disables the check of addresses. Used in VMs, where the VM's network enforces the rules.
    pub anywhere: bool,
    /// The egress policy of the VM that the server connects for. It permits a host and port, or the credentials have the host.
    /// `None`: no policy applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<EgressPolicy>,
    /// Credentials by host. Used only for the server's workspace.
    pub credentials: BTreeMap<String, Credential>,
}

/// A credential for a git host.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// The user name that git sends.
    pub username: String,
    /// The secret, sent as the password. It is omitted from debug output.
    pub token: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("username", &self.username).finish_non_exhaustive()
    }
}
