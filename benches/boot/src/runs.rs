//! Runs one mode: boots VMs in batches until the requested number is reached.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use skep_api::swarm::BootSource;

use crate::{
    fleet::{Booted, Fleet, milliseconds},
    machine::{Machine, Memory, Usage, memory},
    options::{Mode, Source},
    report::Run,
};

/// Parameters of all modes.
pub(crate) struct Plan {
    pub(crate) number: u32,
    pub(crate) concurrency: u32,
    pub(crate) every: Duration,
    pub(crate) source: Source,
    /// `None` if the server runs on another machine.
    pub(crate) machine: Option<Machine>,
}

/// A VM that answered its first command.
pub(crate) struct Sample {
    pub(crate) source: BootSource,
    pub(crate) identity_ms: f64,
    pub(crate) ready_ms: f64,
    pub(crate) tti_ms: f64,
    /// `None` without permission to read it.
    pub(crate) memory: Option<Memory>,
}

impl Plan {
    pub(crate) async fn run(&self, fleet: &Fleet, mode: Mode, bar: &ProgressBar) -> anyhow::Result<Run> {
        self.fill_pool(fleet).await?;
        let begun = Instant::now();
        let before = self.usage();
        let mut samples = Vec::new();
        let mut failures = Vec::new();
        let mut requested = 0;
        while requested < self.number {
            bar.set_message(format!("{}: {requested} of {}", mode.name(), self.number));
            self.fill_pool(fleet).await?;
            let size = match mode {
                Mode::Sequential | Mode::All => 1,
                Mode::Staggered | Mode::Burst => self.concurrency.min(self.number - requested),
            };
            let outcomes = match mode {
                Mode::Staggered => fleet.boot_staggered(size, self.every).await,
                _ => fleet.boot_batch(size).await,
            };
            requested += size;
            let mut vms = Vec::new();
            for outcome in outcomes {
                match outcome {
                    Ok(Booted { vm, tti_ms }) => {
                        match tti_ms {
                            Ok(tti_ms) => samples.push(Sample {
                                source: vm.boot.source,
                                identity_ms: vm.boot.identity_ms,
                                ready_ms: vm.boot.ready_ms,
                                tti_ms,
                                memory: self.machine.and_then(|_| memory(vm.pid?)),
                            }),
                            Err(failure) => failures.push(failure),
                        }
                        vms.push(vm);
                    }
                    Err(failure) => failures.push(failure),
                }
            }
            failures.extend(fleet.end(vms).await);
        }
        // The cost includes the VMs that refill the pool.
        self.fill_pool(fleet).await?;
        let cost = before.zip(self.usage()).map(|(before, now)| now.since(&before, requested));
        Ok(Run::new(mode, requested, milliseconds(begun.elapsed()), &samples, failures, cost))
    }

    async fn fill_pool(&self, fleet: &Fleet) -> anyhow::Result<()> {
        if self.source == Source::Pool { fleet.wait_for_pool().await } else { Ok(()) }
    }

    fn usage(&self) -> Option<Usage> {
        self.machine.and_then(Machine::usage)
    }
}
