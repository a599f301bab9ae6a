//! What git may reach, and what it says there.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// How long a call of another machine may take.
pub const NETWORK_LIMIT: Duration = Duration::from_secs(600);

/// What git may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitReach {
    /// Private and loopback addresses, as CIDR, and names of hosts that may have such addresses.
    pub allow: Vec<String>,
    /// Whether that is not looked at: the network of the place decides, as in a VM.
    pub anywhere: bool,
    /// By host. They are for the server's workspace alone.
    pub credentials: BTreeMap<String, Credential>,
}

/// What a host wants to hear.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// As whom.
    pub username: String,
    /// The secret.
    pub token: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("username", &self.username).finish_non_exhaustive()
    }
}
