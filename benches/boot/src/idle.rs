//! The CPU cost of idle VMs.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    fleet::milliseconds,
    machine::{Machine, cpu_ms},
};

/// The CPU cost of idle VMs, as shares of one processor per VM.
#[derive(Debug, Serialize)]
pub(crate) struct Idle {
    pub(crate) elapsed_ms: f64,
    pub(crate) running: IdleGroup,
    /// VMs in the pool: VMM processes that are not in the server's list of VMs.
    pub(crate) parked: IdleGroup,
}

/// Idle VMs of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct IdleGroup {
    pub(crate) vms: usize,
    /// Null without VMs.
    pub(crate) cpu_share: Option<f64>,
}

/// Measures all VMs for a while; `running` are the process ids of those in use.
pub(crate) async fn measure(machine: Machine, running: &[u32], time: Duration) -> Idle {
    let before: BTreeMap<u32, f64> =
        machine.vmms().into_iter().filter_map(|pid| Some((pid, cpu_ms(pid)?))).collect();
    let begun = Instant::now();
    sleep(time).await;
    let elapsed_ms = milliseconds(begun.elapsed());
    let rest = |runs: bool| {
        let of_state = before.iter().filter(|(pid, _)| running.contains(pid) == runs);
        // A VM that ended in the meantime is not counted.
        let used: Vec<f64> = of_state.filter_map(|(pid, before)| Some(cpu_ms(*pid)? - before)).collect();
        let cpu_share = (!used.is_empty()).then(|| used.iter().sum::<f64>() / elapsed_ms / used.len() as f64);
        IdleGroup { vms: used.len(), cpu_share }
    };
    Idle { elapsed_ms, running: rest(true), parked: rest(false) }
}
