//! `skep system`.

use std::process::ExitCode;

use clap::Args;
use skep_api::system::{self, ReadSystem};

use crate::{connection::Connection, output};

/// Show the server's versions, disk, memory, VMs and damaged templates.
#[derive(Debug, Args)]
pub(crate) struct System {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: System) -> anyhow::Result<ExitCode> {
    let answer = verb.connection.client()?.run(&ReadSystem {}).await?;
    if verb.connection.json {
        output::json(&answer.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let system::System { versions, uptime, disk, memory, swarm, swarm_unavailable, .. } = answer.value;
    let gib = |bytes: u64| bytes >> 30;
    output::line(&format!("skep     {} (API {})", versions.skep, versions.api))?;
    output::line(&format!("kernel   {}", versions.kernel))?;
    output::line(&format!("uptime   {uptime:.0} s"))?;
    output::line(&format!("disk     {} of {} GiB free", gib(disk.free_bytes), gib(disk.size_bytes)))?;
    output::line(&format!("memory   {} of {} MiB available", memory.available_mb, memory.total_mb))?;
    match swarm {
        Some(swarm) => show_swarm(&swarm)?,
        None => output::line(&format!("VMs      {}", swarm_unavailable.unwrap_or_default()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show_swarm(swarm: &system::SwarmState) -> std::io::Result<()> {
    output::line(&format!("engine   {} ({})", swarm.engine.name, swarm.engine.accel))?;
    output::line(&format!("VMs      {}, which hold {} MiB", swarm.vms, swarm.memory_held_mb))?;
    for (template, pool) in &swarm.pool {
        output::line(&format!("pool     {template}: {} of {} ready", pool.ready, pool.target))?;
    }
    for damaged in &swarm.damaged_templates {
        output::line(&format!("damaged  {}: {}", damaged.template, damaged.message))?;
    }
    Ok(())
}
