//! `skep ps`.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use skep_api::swarm::{Vm, VmState};
use tokio::time::sleep;

use super::boot::milliseconds;
use crate::{
    connection::{Connection, EXIT_CODES},
    output,
};

/// A terminal's word for: from the top, on an empty screen.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";
/// Whoever looks more often than this takes time from the VMs.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// List the VMs.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Ps {
    /// Look again and again, this many seconds apart [default: 2]; `ms`, `s` and `m` may follow the number.
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Ps) -> anyhow::Result<ExitCode> {
    let pause = verb.watch.as_deref().map(milliseconds).transpose()?.map(Duration::from_millis);
    let client = verb.connection.client()?;
    loop {
        let swarm = client.swarm().await?;
        if pause.is_some() && io::stdout().is_terminal() && !verb.connection.json {
            output::bytes(CLEAR)?;
        }
        if verb.connection.json {
            output::json(&swarm.text)?
        } else {
            show(&swarm.vms)?
        }
        match pause {
            Some(pause) if !output::is_unread() => sleep(pause.max(SHORTEST_PAUSE)).await,
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
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
