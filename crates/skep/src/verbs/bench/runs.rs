//! Runs one mode: boots VMs in batches until the requested number is reached.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use skep_api::swarm::BootSource;

use super::{
    Mode, Source,
    fleet::{Booted, Fleet, milliseconds},
    machine::{Machine, Memory, Usage, memory},
    report::Run,
};

/// Parameters of all modes.
pub(super) struct Plan {
    pub(super) number: u32,
    pub(super) concurrency: u32,
    pub(super) every: Duration,
    pub(super) source: Source,
    /// `None` if the server runs on another machine.
    pub(super) machine: Option<Machine>,
}

/// A VM that answered its first command.
pub(super) struct Sample {
    pub(super) source: BootSource,
    pub(super) identity_ms: f64,
    pub(super) ready_ms: f64,
    pub(super) tti_ms: f64,
    /// `None` without permission to read it.
    pub(super) memory: Option<Memory>,
}

impl Plan {
    pub(super) async fn run(&self, fleet: &Fleet, mode: Mode, bar: &ProgressBar) -> anyhow::Result<Run> {
        self.fill_pool(fleet).await?;
        let (begun, before) = (Instant::now(), self.usage());
        let (mut samples, mut failures, mut requested) = (Vec::new(), Vec::new(), 0);
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
