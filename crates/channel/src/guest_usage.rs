//! What only the guest knows of its use.

use serde::{Deserialize, Serialize};

/// The current resource usage inside a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUsage {
    /// Processes of programs: not threads of the kernel, the agent, and shells that wait for a command.
    pub processes: u32,
    /// Memory that the guest's kernel manages, in bytes.
    pub memory_bytes: u64,
    /// Memory that programs can still take without swapping, in bytes.
    pub memory_available_bytes: u64,
}
