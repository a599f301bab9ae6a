//! `skep ps`.

use std::{io, process::ExitCode};

use clap::Args;
use skep_api::swarm::{Vm, VmState};

use crate::{connection::Connection, output};

/// List the VMs.
#[derive(Debug, Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Ps) -> anyhow::Result<ExitCode> {
    let swarm = verb.connection.client()?.swarm().await?;
    if verb.connection.json {
        output::json(&swarm.text)?
    } else {
        show(&swarm.vms)?
    }
    Ok(ExitCode::SUCCESS)
}

/// VMs as a table.
pub(super) fn show(vms: &[Vm]) -> io::Result<()> {
    let row = |vm: &Vm| {
        let state = match vm.state {
            VmState::Running => "running",
            VmState::Paused => "paused",
        };
        [
            vm.pid.to_string(),
            vm.id.to_string(),
            vm.ip.clone(),
            state.to_owned(),
            vm.template.clone(),
            output::duration(vm.uptime),
            format!("{:.0} ms", vm.boot.ready_ms),
        ]
    };
    output::table(["PID", "ID", "IP", "STATE", "TEMPLATE", "UPTIME", "READY IN"], vms.iter().map(row))
}
