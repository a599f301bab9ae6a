//! One VM: the task that owns it, the states that it goes through, and the handle to the task.
//!
//! ```text
//!   boot ──────▶ running ──── pause ───▶ paused ◀────── adoption of a
//!                │ ▲   ▲ └── resume ──┘  │              paused VM
//!   adoption ────┼─┘                     │
//!                │ ── pause to disk ──▶ on disk ◀────── adoption of a
//!                │ ◀──── resume ─────── │               VM on disk
//!                └──▶ ending ◀──────────┘   DELETE, cleanup, expiry, the end of its ticket,
//!                        │                   of its VMM or of its agent
//!                        ▼
//!                 the end is recorded, and the task is over
//! ```
//!
//! A state owns what exists in it: only [`Running`] gives callers the connection to the guest, a [`Paused`] VM that was
//! adopted has no such connection, and a VM that is [`OnDisk`] has no VMM. A transition takes the state and returns
//! the next one, or the same one with the error, so only those of the drawing can be written.
//!
//! A copy of a running VM, for a fork or a snapshot, does not change its state; see [`copying`](self::copying).
//!
//! The record in the store is the truth. A pause stops the processors, then records that; a resume starts them, then
//! records that. If the record fails, the transition is undone. If the server dies in between, the one that adopts the VM
//! does the same.

mod activity;
mod copying;
mod current_vmm;
mod disk_pause;
mod ending;
mod handle;
mod idleness;
mod on_disk;
mod paused;
mod relay_log;
mod running;
mod stored;
mod task;

use std::{os::fd::OwnedFd, sync::Arc, time::Instant};

use jiff::Timestamp;
use skep_api::swarm::Vm;
use skep_channel::Guest;
use skep_engine::{DiskTraffic, Driver, Machine};
use skep_keeper_protocol::ServerEnd;
use skep_store::{VmBooted, VmStore};

pub(crate) use self::{
    activity::{ActiveCall, Activity},
    copying::CopyPurpose,
    handle::{DiskBoot, ResumeOrder, VmHandle},
    on_disk::{OnDisk, take_over},
    paused::Paused,
    running::Running,
    task::{deadline, spawn_vm_task},
};
use crate::{
    Error,
    budget::{Budget, Reservation},
    captures::CaptureCounts,
    console::ConsoleLog,
    disk_quota::DiskQuotas,
    disk_traffic::DiskTotals,
    metrics::SharedObserver,
    registry::Registry,
};

/// A booted VM that is not recorded yet.
pub(crate) struct BootedVm {
    pub(crate) facts: VmBooted,
    pub(crate) guest: Guest,
    pub(crate) console: ConsoleLog,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) pidfd: OwnedFd,
    pub(crate) arrived: Instant,
    /// When it expires, by the monotonic clock.
    pub(crate) deadline: Option<Instant>,
    pub(crate) reservation: Reservation,
}

/// A recorded VM that no task owns yet.
pub(crate) struct RecordedVm {
    pub(crate) facts: VmBooted,
    pub(crate) console: ConsoleLog,
    /// The process of its VMM. `None` if it is on disk, like its reservation.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) arrived: Instant,
    /// When it expires, by the monotonic clock.
    pub(crate) deadline: Option<Instant>,
    pub(crate) reservation: Option<Reservation>,
    pub(crate) resumed_at: Option<Timestamp>,
    pub(crate) state: Live,
    /// What its disk did before and is counted already; `None` for all.
    pub(crate) counted_traffic: Option<DiskTraffic>,
}

/// The states of a VM before its end.
pub(crate) enum Live {
    Running(Running),
    Paused(Paused),
    OnDisk(OnDisk),
}

/// A transition that did not happen: the state that the VM is still in, and why.
pub(crate) type Unchanged<State> = (State, Error);

/// The dependencies of a VM's task.
#[derive(Clone)]
pub(crate) struct VmContext {
    pub(crate) keeper: ServerEnd,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) store: Arc<dyn VmStore>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) observer: SharedObserver,
    pub(crate) disk_totals: DiskTotals,
    pub(crate) disk_quotas: DiskQuotas,
    pub(crate) captures: CaptureCounts,
}

impl BootedVm {
    /// The record of the VM at its boot.
    pub(crate) fn record(&self) -> Vm {
        self.facts.to_api(self.facts.attributes.clone(), None, self.arrived.elapsed().as_secs_f64())
    }

    pub(crate) fn recorded(self) -> RecordedVm {
        let Self { facts, guest, console, machine, pidfd, arrived, deadline, reservation } = self;
        let state = Live::Running(Running { machine: machine.into(), guest });
        let counted_traffic = Some(DiskTraffic::default());
        RecordedVm {
            facts,
            console,
            pidfd: Some(pidfd),
            arrived,
            deadline,
            reservation: Some(reservation),
            resumed_at: None,
            state,
            counted_traffic,
        }
    }
}

impl Live {
    /// The VMM. `None` if the VM is on disk.
    fn machine(&self) -> Option<&Arc<dyn Machine>> {
        match self {
            Self::Running(vm) => Some(&vm.machine),
            Self::Paused(vm) => Some(&vm.machine),
            Self::OnDisk(_) => None,
        }
    }

    /// Waits until the connection to the agent is lost.
    async fn agent_closed(&self) {
        match self {
            Self::Running(vm) => vm.guest.closed().await,
            Self::Paused(vm) => vm.agent_closed().await,
            Self::OnDisk(_) => std::future::pending().await,
        }
    }
}
