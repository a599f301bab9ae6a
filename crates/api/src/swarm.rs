//! VMs: their records, boot requests, and the capacity of the machine.

mod metrics;
mod pause;
mod record;
mod requests;
mod samples;
mod status;

pub use self::{
    metrics::{
        CpuMetrics, DiskMetrics, DiskTrafficMetrics, GuestMetrics, MemoryMetrics, NetworkMetrics, VmMetrics,
    },
    pause::{OnIdle, PausedBy, PausedTo, ResumedBy},
    record::{BootReceipt, BootSource, EndReason, Vm, VmList, VmState, VmUsage},
    requests::{
        BootAnswer, BootRequest, ChangeRequest, CleanupAnswer, Console, DeleteAnswer, PauseRequest,
        ResumeRequest, SnapshotRequest,
    },
    samples::{SampleTotals, SwarmSample, SwarmSamples, VmSample},
    status::{Capacity, EngineReport, Isolation, PoolState, SwarmStatus},
};

/// The template of a boot that names none.
pub const BASE_TEMPLATE: &str = "base";

/// The most VMs in the status of the swarm.
pub const MAX_LISTED_VMS: usize = 1_000;

/// The environment variable with the URL of the API, set for commands in a VM that has its own key.
pub const API_URL_VARIABLE: &str = "SKEP_URL";
