//! What only the guest knows of its use.

use serde::{Deserialize, Serialize};

/// The current resource usage inside a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUsage {
    /// Processes of programs: neither threads of the kernel nor the agent.
    pub processes: u32,
    /// Memory that the guest's kernel manages, in bytes.
    pub memory_bytes: u64,
    /// Memory that programs can still take without swapping, in bytes.
    pub memory_available_bytes: u64,
}
