//! Stops and continues all programs of a VM, for a copy of its memory and disk.

use serde::{Deserialize, Serialize};

/// Freezes all programs of the VM. The agent and the kernel run on. Only [`ThawRequest`] and an identity continue them; a
/// lost connection does not, since a copy of the VM begins with one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeRequest {
    /// Names this freeze: 1 to 128 bytes. A freeze with another token is refused until the programs run again.
    pub token: String,
    /// Whether the file system of the VM's disk is synced once no program runs, so that its disk can be used without its
    /// memory.
    pub sync: bool,
}

/// The guest's confirmation that no program runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeReport {
    /// Whether the file system of the VM's disk was synced.
    pub synced: bool,
}

/// Lets all programs of the VM run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThawRequest {
    /// The token of the freeze; another one is refused. `None` ends any freeze: a server that takes over a VM does not know
    /// the token.
    pub token: Option<String>,
}
