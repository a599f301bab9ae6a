//! The lifecycle of VMs: boot, identity, exec, end.
//!
//! One task owns each VM and takes commands from a queue, so VMs need no locks. The keeper owns the processes; this
//! crate controls them and records their state in the store.

mod adopt;
mod api_access;
mod boot;
mod boot_command;
mod boot_spec;
mod budget;
mod captures;
mod command_outcome;
mod console;
mod demand;
mod disk_quota;
mod disk_traffic;
mod end_reason;
mod error;
mod hand_out;
mod history;
mod identity;
mod idle;
mod loss;
mod metrics;
mod parked_vm;
mod pool;
mod refill;
mod registry;
mod restore;
mod run_log;
mod swarm;
mod template;
mod ticket_file;
mod usage;
mod vm;

pub use adopt::record_all_as_lost;
pub use boot_spec::{BootFrom, BootSpec};
pub use disk_quota::{DiskReservation, WorkspaceFiles, check_disk, disk_refusal};
pub use end_reason::{EndReasonReceiver, VmEnding};
pub use error::Error;
pub use history::{AccountSamples, MetricsHistory, SAMPLE_INTERVAL};
pub use metrics::{Observer, SwarmMetrics, VmmCounts};
pub use skep_api::exec::ExecEvent;
pub use skep_channel::ExecStream;
pub use skep_engine::DiskTraffic;
pub use skep_keeper_protocol::{EgressRefusal, EgressTotals};
pub use skep_keeper_protocol::{TemplateState, TemplateStatus};
pub use swarm::{AwakeVm, Swarm, SwarmParts};
pub use template::require_ready;

/// In milliseconds, rounded to microseconds.
fn round_ms(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
