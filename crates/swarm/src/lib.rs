//! The lifecycle of VMs: boot, identity, exec, end.
//!
//! One task owns each VM and takes commands from a queue, so VMs need no locks. The keeper owns the processes; this
//! crate controls them and records their state in the store.

mod adopt;
mod api_access;
mod boot;
mod budget;
mod command;
mod command_outcome;
mod console;
mod demand;
mod ending;
mod error;
mod figures;
mod hand_out;
mod identity;
mod order;
mod park;
mod pool;
mod refill;
mod registry;
mod restore;
mod run_log;
mod swarm;
mod ticket_file;
mod vm;

pub use adopt::lose_all;
pub use ending::Ending;
pub use error::Error;
pub use figures::{Figures, Observer, Vmms};
pub use order::{BootOrder, VmChange};
pub use skep_api::exec::ExecEvent;
pub use skep_channel::ExecStream;
pub use swarm::{Parts, Swarm};

/// In milliseconds, rounded to microseconds.
fn round_ms(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
