//! `skep status`.

use std::process::ExitCode;

use clap::Args;
use skep_api::swarm::Isolation;

use crate::{connection::Connection, output};

/// Show the number of VMs, memory, pool and VM engine.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Status) -> anyhow::Result<ExitCode> {
    let swarm = verb.connection.client()?.swarm().await?;
    if verb.connection.json {
        output::json(&swarm.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let capacity = swarm.capacity;
    // VMs on disk are counted, but need no part of the capacity.
    output::line(&format!("VMs        {}; at most {} in memory", swarm.count, capacity.max_vms))?;
    output::line(&format!("memory     {} of {} MiB promised", capacity.memory_used_mb, capacity.memory_mb))?;
    if let Some(available_mb) = capacity.memory_available_mb {
        output::line(&format!(
            "           {} MiB held, {available_mb} MiB available",
            capacity.memory_held_mb
        ))?;
    }
    for (template, pool) in &swarm.pool {
        output::line(&format!("pool       {template}: {} of {} ready", pool.ready, pool.target))?;
    }
    match &swarm.engine {
        None => output::line("engine     none: this server runs no VMs; `skep doctor` says why")?,
        Some(engine) => {
            let isolation = match engine.isolation {
                Isolation::Hardware => "hardware",
                Isolation::Emulated => "emulated",
            };
            output::line(&format!("engine     {}, {}", engine.name, engine.accel))?;
            output::line(&format!("isolation  {isolation}: {}", engine.reason))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
