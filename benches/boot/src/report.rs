//! The results, as `--json` prints them.

use serde::Serialize;
use skep_api::swarm::{BootSource, Capacity, EngineReport};

use crate::{
    idle::Idle,
    machine::Cost,
    options::{Mode, Source},
    percentiles::Percentiles,
    runs::Sample,
};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) engine: Option<EngineReport>,
    pub(crate) capacity: Capacity,
    /// Number of VMs that the pool should have.
    pub(crate) pool_target: u32,
    pub(crate) source: Source,
    pub(crate) concurrency: u32,
    pub(crate) runs: Vec<Run>,
    /// Commands one after the other in one VM; null if none were requested.
    pub(crate) commands: Option<Commands>,
    /// Idle VMs; null if not requested, or if the server runs on another machine.
    pub(crate) idle: Option<Idle>,
    /// Whether the server runs on this machine, so that CPU time could be read.
    pub(crate) same_machine: bool,
}

/// Results of one mode.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) mode: Mode,
    pub(crate) vms: u32,
    /// VMs that answered their first command.
    pub(crate) succeeded: u32,
    pub(crate) success_rate: f64,
    /// Includes the time to fill the pool and to end the VMs.
    pub(crate) elapsed_ms: f64,
    pub(crate) groups: Vec<Group>,
    /// Null if the server runs on another machine.
    pub(crate) cost: Option<Cost>,
    pub(crate) failures: Vec<String>,
}

/// The VMs of one mode with the same source.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) source: BootSource,
    pub(crate) vms: u32,
    pub(crate) identity_ms: Percentiles,
    pub(crate) ready_ms: Percentiles,
    pub(crate) tti_ms: Percentiles,
    /// Null if it could not be read.
    pub(crate) private_mb: Option<Percentiles>,
    /// Null if it could not be read.
    pub(crate) anonymous_mb: Option<Percentiles>,
    /// Null if it could not be read.
    pub(crate) proportional_mb: Option<Percentiles>,
}

/// Commands one after the other in one VM.
#[derive(Debug, Serialize)]
pub(crate) struct Commands {
    pub(crate) number: u32,
    /// Null if none succeeded.
    pub(crate) elapsed_ms: Option<Percentiles>,
    pub(crate) failures: Vec<String>,
}

impl Run {
    pub(crate) fn new(
        mode: Mode,
        vms: u32,
        elapsed_ms: f64,
        samples: &[Sample],
        failures: Vec<String>,
        cost: Option<Cost>,
    ) -> Self {
        let groups = [BootSource::Pool, BootSource::Cold].into_iter().filter_map(|source| {
            Group::of(source, samples.iter().filter(|sample| sample.source == source).collect())
        });
        let succeeded = u32::try_from(samples.len()).unwrap_or(u32::MAX);
        Self {
            mode,
            vms,
            succeeded,
            success_rate: f64::from(succeeded) / f64::from(vms.max(1)),
            elapsed_ms,
            groups: groups.collect(),
            cost,
            failures,
        }
    }
}

impl Group {
    fn of(source: BootSource, samples: Vec<&Sample>) -> Option<Self> {
        let figures = |value: fn(&Sample) -> f64| Percentiles::of(samples.iter().map(|sample| value(sample)));
        let memory = || samples.iter().filter_map(|sample| sample.memory);
        Some(Self {
            source,
            vms: u32::try_from(samples.len()).ok()?,
            identity_ms: figures(|sample| sample.identity_ms)?,
            ready_ms: figures(|sample| sample.ready_ms)?,
            tti_ms: figures(|sample| sample.tti_ms)?,
            private_mb: Percentiles::of(memory().map(|memory| memory.private_mb)),
            anonymous_mb: Percentiles::of(memory().map(|memory| memory.anonymous_mb)),
            proportional_mb: Percentiles::of(memory().map(|memory| memory.proportional_mb)),
        })
    }
}

impl Report {
    /// All distinct failures.
    pub(crate) fn failures(&self) -> Vec<&String> {
        let mut failures: Vec<&String> = self.runs.iter().flat_map(|run| &run.failures).collect();
        failures.extend(self.commands.iter().flat_map(|commands| &commands.failures));
        failures.sort();
        failures.dedup();
        failures
    }

    /// Counts the failures of all runs and commands.
    pub(crate) fn failed(&self) -> usize {
        let of_runs: usize = self.runs.iter().map(|run| run.failures.len()).sum();
        of_runs + self.commands.as_ref().map_or(0, |commands| commands.failures.len())
    }
}
