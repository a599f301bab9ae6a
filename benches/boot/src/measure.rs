//! The sequence of measurements.

use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::ProgressBar;
use skep_api::swarm::Vm;
use tokio::time::sleep;

use crate::{
    fleet::{Fleet, milliseconds},
    idle,
    machine::Machine,
    options::{Options, Source},
    percentiles::Percentiles,
    report::{Commands, Report},
    runs::Plan,
};

/// Default concurrency for a server without a pool.
const DEFAULT_CONCURRENCY: u32 = 4;
/// Delay before the idle measurement, in which VMs finish the work of their last command.
const SETTLE_TIME: Duration = Duration::from_secs(2);
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

/// Runs all requested measurements.
pub(crate) async fn measure(options: &Options, fleet: &Fleet) -> anyhow::Result<Report> {
    let status = fleet.status().await?.value;
    let target = fleet.pool().await?.target;
    let source = source(options.source, target)?;
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(SPINNER_INTERVAL);
    bar.set_message("first VM");
    let first = first_vm(fleet).await?;
    let plan = Plan {
        number: options.number,
        concurrency: options.concurrency.unwrap_or(if target > 0 { target } else { DEFAULT_CONCURRENCY }),
        every: options.every,
        source,
        machine: first.as_ref().and_then(Machine::of),
    };
    fleet.end(first.iter().cloned()).await;
    let mut runs = Vec::new();
    for mode in options.mode.expand() {
        runs.push(plan.run(fleet, mode, &bar).await?);
    }
    let commands =
        if options.commands > 0 { Some(commands(fleet, options.commands, &bar).await) } else { None };
    let idle = match plan.machine.filter(|_| !options.idle.is_zero()) {
        Some(machine) => measure_idle(fleet, &plan, machine, options.idle, &bar).await?,
        None => None,
    };
    bar.finish_and_clear();
    Ok(Report {
        engine: status.engine,
        capacity: status.capacity,
        pool_target: target,
        source,
        concurrency: plan.concurrency,
        runs,
        commands,
        idle,
        same_machine: plan.machine.is_some(),
    })
}

/// The source to measure; fails if this server cannot provide it.
fn source(wanted: Option<Source>, target: u32) -> anyhow::Result<Source> {
    match (wanted, target) {
        (Some(Source::Pool), 0) => {
            bail!("this server has no pool for the template; start it with --pool-size, or use --source cold")
        }
        (Some(Source::Cold), 1..) => bail!(
            "this server keeps {target} VMs ready; start it with --pool-size 0, or use --source any with a \
             higher concurrency: results are grouped by the source of each VM"
        ),
        (Some(source), _) => Ok(source),
        (None, 0) => Ok(Source::Cold),
        (None, _) => Ok(Source::Pool),
    }
}

/// Boots one VM, to find out whether the server is on this machine and to exclude the cost of a first boot. Its failure
/// is ignored, as the measurements report it.
async fn first_vm(fleet: &Fleet) -> anyhow::Result<Option<Vm>> {
    fleet.wait_for_pool().await?;
    Ok(fleet.boot_batch(1).await.into_iter().flatten().next().map(|booted| booted.vm))
}

async fn commands(fleet: &Fleet, number: u32, bar: &ProgressBar) -> Commands {
    bar.set_message(format!("{number} commands in one VM"));
    let mut times = Vec::new();
    let mut failures = Vec::new();
    let mut vms = Vec::new();
    match fleet.boot_batch(1).await.into_iter().next() {
        Some(Ok(booted)) => {
            for _ in 0..number {
                let begun = Instant::now();
                match fleet.command(&booted.vm).await {
                    Ok(()) => times.push(milliseconds(begun.elapsed())),
                    Err(failure) => failures.push(failure),
                }
            }
            vms.push(booted.vm);
        }
        Some(Err(failure)) => failures.push(failure),
        None => {}
    }
    failures.extend(fleet.end(vms).await);
    Commands { number, elapsed_ms: Percentiles::of(times), failures }
}

async fn measure_idle(
    fleet: &Fleet,
    plan: &Plan,
    machine: Machine,
    time: Duration,
    bar: &ProgressBar,
) -> anyhow::Result<Option<idle::Idle>> {
    bar.set_message("VMs at rest");
    let booted = fleet.boot_batch(plan.concurrency).await;
    let vms: Vec<Vm> = booted.into_iter().flatten().map(|booted| booted.vm).collect();
    fleet.wait_for_pool().await?;
    sleep(SETTLE_TIME).await;
    let running: Vec<u32> = vms.iter().filter_map(|vm| vm.pid).collect();
    let rest = idle::measure(machine, &running, time).await;
    fleet.end(vms).await;
    Ok(Some(rest))
}
