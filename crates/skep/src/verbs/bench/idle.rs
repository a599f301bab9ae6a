//! What VMs cost while nobody uses them.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    fleet::milliseconds,
    machine::{Machine, cpu_ms},
};

/// What VMs cost at rest, as shares of one processor for each VM.
#[derive(Debug, Serialize)]
pub(super) struct Idle {
    pub(super) elapsed_ms: f64,
    /// VMs of the record.
    pub(super) running: Rest,
    /// VMs that are kept ready: processes of the keeper that no record names.
    pub(super) parked: Rest,
}

/// VMs of one state at rest.
#[derive(Debug, Serialize)]
pub(super) struct Rest {
    pub(super) vms: usize,
    /// Null where there are none.
    pub(super) cpu_share: Option<f64>,
}

/// Watches all VMs for a while, of which these run.
pub(super) async fn watch(machine: Machine, running: &[u32], time: Duration) -> Idle {
    let before: BTreeMap<u32, f64> =
        machine.vmms().into_iter().filter_map(|pid| Some((pid, cpu_ms(pid)?))).collect();
    let begun = Instant::now();
    sleep(time).await;
    let elapsed_ms = milliseconds(begun.elapsed());
    let rest = |runs: bool| {
        let of_state = before.iter().filter(|(pid, _)| running.contains(pid) == runs);
        // One that ended meanwhile was not at rest.
        let used: Vec<f64> = of_state.filter_map(|(pid, before)| Some(cpu_ms(*pid)? - before)).collect();
        let cpu_share = (!used.is_empty()).then(|| used.iter().sum::<f64>() / elapsed_ms / used.len() as f64);
        Rest { vms: used.len(), cpu_share }
    };
    Idle { elapsed_ms, running: rest(true), parked: rest(false) }
}
