//! `skep ps`.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use serde_json::json;
use skep_api::swarm::{Vm, VmState};
use skep_client::Client;
use tokio::time::sleep;

use super::boot::milliseconds;
use crate::{
    connection::{Connection, EXIT_CODES},
    output,
};

/// Moves the cursor of a terminal to the top and clears the screen.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";
/// The shortest pause between two looks: more of them take time from the VMs.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// VMs that ended which `--all` lists.
const ENDED: u32 = 100;

/// List the VMs.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Ps {
    /// List those that ended lately too, the last 100, with the time and the reason of their end.
    #[arg(short, long)]
    all: bool,
    /// Look again and again, this many seconds apart [default: 2]; `ms`, `s` and `m` may follow the number.
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Ps) -> anyhow::Result<ExitCode> {
    let pause = verb.watch.as_deref().map(milliseconds).transpose()?.map(Duration::from_millis);
    let client = verb.connection.client()?;
    let clear = pause.is_some() && io::stdout().is_terminal() && !verb.connection.json;
    loop {
        look(&verb, &client, clear).await?;
        match pause {
            Some(pause) if !output::is_unread() => sleep(pause.max(SHORTEST_PAUSE)).await,
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn look(verb: &Ps, client: &Client, clear: bool) -> anyhow::Result<()> {
    let swarm = client.swarm().await?;
    let ended = if verb.all { Some(client.ended_vms(ENDED).await?.value.vms) } else { None };
    if clear {
        output::bytes(CLEAR)?;
    }
    match (ended, verb.connection.json) {
        (None, true) => output::json(&swarm.text)?,
        (None, false) => show(&swarm.vms)?,
        (Some(ended), json) => {
            let all: Vec<&Vm> = swarm.vms.iter().chain(&ended).collect();
            if json {
                output::value(&json!({ "vms": all }))?;
            } else {
                show_with_ends(&all)?;
            }
        }
    }
    Ok(())
}

/// VMs as a table.
pub(super) fn show(vms: &[Vm]) -> io::Result<()> {
    let row = |vm: &Vm| {
        [
            vm.pid.to_string(),
            vm.id.to_string(),
            vm.ip.clone(),
            state(vm).to_owned(),
            vm.template.clone(),
            output::duration(vm.uptime),
            format!("{:.0} ms", vm.boot.ready_ms),
        ]
    };
    output::table(["PID", "ID", "IP", "STATE", "TEMPLATE", "UPTIME", "READY IN"], vms.iter().map(row))
}

/// The same with those that ended.
fn show_with_ends(vms: &[&Vm]) -> io::Result<()> {
    let row = |vm: &&Vm| {
        [
            vm.pid.to_string(),
            vm.id.to_string(),
            state(vm).to_owned(),
            vm.template.clone(),
            output::duration(vm.uptime),
            output::time(vm.ended_at),
            vm.reason.map_or("-", |reason| reason.as_str()).to_owned(),
        ]
    };
    output::table(["PID", "ID", "STATE", "TEMPLATE", "UPTIME", "ENDED", "REASON"], vms.iter().map(row))
}

fn state(vm: &Vm) -> &'static str {
    match vm.state {
        VmState::Running => "running",
        VmState::Paused => "paused",
        VmState::Ended => "ended",
    }
}
