//! Pauses of VMs: where their memory is kept, and what pauses and resumes them.

use serde::{Deserialize, Serialize};

/// Where the memory of a paused VM is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PausedTo {
    /// In the memory of the VMM process, which continues to exist.
    Memory,
    /// In files of the server. The VMM process has ended, and its memory is free.
    Disk,
}

impl PausedTo {
    /// The value as it is sent, such as `memory`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// What paused a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PausedBy {
    /// A call of `pause`. Only a call of `resume` resumes the VM.
    Request,
    /// Its `idle_timeout_ms`. The next request that needs the VM resumes it.
    Idle,
    /// The server, which needed the memory of a VM that an idle timeout had paused. The next request that needs the VM
    /// resumes it.
    Memory,
}

impl PausedBy {
    /// The value as it is sent, such as `idle`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Idle => "idle",
            Self::Memory => "memory",
        }
    }

    /// What paused a VM that is paused again. A pause by a request only ends by a request.
    #[must_use]
    pub const fn after(self, before: Self) -> Self {
        match before {
            Self::Request => Self::Request,
            Self::Idle | Self::Memory => self,
        }
    }
}

/// Why a paused VM was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResumedBy {
    /// A call of `POST /api/swarm/vm/{pid}/resume`.
    Request,
    /// Another call that needed the VM to run.
    Activity,
}

/// What happens to a VM that was idle for its `idle_timeout_ms`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OnIdle {
    /// It is paused, and keeps its memory.
    #[default]
    Pause,
    /// It is paused to disk.
    PauseToDisk,
    /// It ends, with the reason `idle`.
    End,
}

impl OnIdle {
    /// The value as it is sent, such as `pause_to_disk`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::PauseToDisk => "pause_to_disk",
            Self::End => "end",
        }
    }
}
