//! Samples of what the VMs of an account use.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::VmId;

/// What one VM used at the time of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmSample {
    /// The id of the VM.
    pub id: VmId,
    /// The process id of the VM on the server.
    #[cfg_attr(feature = "openapi", schema(example = 4242))]
    pub pid: u32,
    /// The processor time that the VM has used since its start, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 5120))]
    pub cpu_ms: u64,
    /// The processor time since the previous sample, in percent of one processor; null in the VM's first sample.
    #[cfg_attr(feature = "openapi", schema(example = 42.5))]
    pub cpu_percent: Option<f64>,
    /// The memory that the VM's end would free, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 61))]
    pub memory_mb: u64,
}

/// What all VMs of an account used at the time of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SampleTotals {
    /// The number of VMs.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub vms: u32,
    /// The sum of `cpu_percent`, in percent of one processor.
    #[cfg_attr(feature = "openapi", schema(example = 120.5))]
    pub cpu_percent: f64,
    /// The sum of `memory_mb`, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 183))]
    pub memory_mb: u64,
}

/// A sample of an account's VMs, and the data of a `sample` event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwarmSample {
    /// When the sample was taken.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The sums over the VMs.
    pub totals: SampleTotals,
    /// The VMs, oldest first.
    pub vms: Vec<VmSample>,
}

/// The samples of the last 15 minutes. Answer of `GET /api/swarm/metrics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwarmSamples {
    /// The time between two samples, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 2000))]
    pub interval_ms: u64,
    /// The samples, oldest first.
    pub samples: Vec<SwarmSample>,
    /// Whether the oldest samples are missing because the answer would be too large; ask with a later `since`.
    pub truncated: bool,
}
