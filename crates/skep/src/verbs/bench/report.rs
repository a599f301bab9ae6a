//! The results, as printed by --json.

use serde::Serialize;
use skep_api::swarm::{BootSource, Capacity, EngineReport};

use super::{Mode, Source, idle::Idle, machine::Cost, percentiles::Percentiles, runs::Sample};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) engine: Option<EngineReport>,
    pub(super) capacity: Capacity,
    /// Number of VMs that the pool should have.
    pub(super) pool_target: u32,
    pub(super) source: Source,
    pub(super) concurrency: u32,
    pub(super) runs: Vec<Run>,
    /// Commands one after the other in one VM; null if none were requested.
    pub(super) commands: Option<Commands>,
    /// Idle VMs; null if not requested, or if the server runs on another machine.
    pub(super) idle: Option<Idle>,
    /// Whether the server runs on this machine, so that CPU time could be read.
    pub(super) same_machine: bool,
}

/// Results of one mode.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) mode: Mode,
    pub(super) vms: u32,
    /// VMs that answered their first command.
    pub(super) succeeded: u32,
    pub(super) success_rate: f64,
    /// Includes the time to fill the pool and to end the VMs.
    pub(super) elapsed_ms: f64,
    pub(super) groups: Vec<Group>,
    /// Null if the server runs on another machine.
    pub(super) cost: Option<Cost>,
    pub(super) failures: Vec<String>,
}

/// The VMs of one mode with the same source.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    pub(super) source: BootSource,
    pub(super) vms: u32,
    pub(super) identity_ms: Percentiles,
    pub(super) ready_ms: Percentiles,
    pub(super) tti_ms: Percentiles,
    /// Null if it could not be read.
    pub(super) private_mb: Option<Percentiles>,
    /// Null if it could not be read.
    pub(super) anonymous_mb: Option<Percentiles>,
    /// Null if it could not be read.
    pub(super) proportional_mb: Option<Percentiles>,
}

/// Commands one after the other in one VM.
#[derive(Debug, Serialize)]
pub(super) struct Commands {
    pub(super) number: u32,
    /// Null if none succeeded.
    pub(super) elapsed_ms: Option<Percentiles>,
    pub(super) failures: Vec<String>,
}

impl Run {
    pub(super) fn new(
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
    pub(super) fn failures(&self) -> Vec<&String> {
        let mut failures: Vec<&String> = self.runs.iter().flat_map(|run| &run.failures).collect();
        failures.extend(self.commands.iter().flat_map(|commands| &commands.failures));
        failures.sort();
        failures.dedup();
        failures
    }

    /// Counts the failures of all runs and commands.
    pub(super) fn failed(&self) -> usize {
        let of_runs: usize = self.runs.iter().map(|run| run.failures.len()).sum();
        of_runs + self.commands.as_ref().map_or(0, |commands| commands.failures.len())
    }
}
