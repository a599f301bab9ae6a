//! `skep ps`: the list of VMs, once or refreshed.

use std::{
    collections::HashSet,
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use skep_api::{
    VmName,
    swarm::{PausedTo, SwarmStatus, Vm, VmState},
    templates::TemplateState,
};
use skep_client::{Answered, Client};
use tokio::time::sleep;

use super::boot::parse_milliseconds;
use crate::{connection::Connection, live_vms, output};

/// Moves the cursor to the top and clears the screen.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";
/// Lower limit of --watch: each refresh costs the server time.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum length of abbreviated ids: the prefix and the time stamp.
const MIN_ID_LENGTH: usize = 13;
/// Maximum number of ended VMs in `--all`.
const MAX_ENDED_VMS: u32 = 100;

/// List the VMs.
#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Also list the last 100 VMs that ended, with the time and the reason.
    #[arg(short, long)]
    all: bool,
    /// Also show full ids, addresses, templates and boot times.
    #[arg(long, conflicts_with = "all")]
    wide: bool,
    /// Refresh the list at this interval, such as 500ms or 5s; at least 100ms [default: list once; without a value:
    /// 2s].
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Ps) -> anyhow::Result<ExitCode> {
    let pause = verb.watch.as_deref().map(parse_milliseconds).transpose()?.map(Duration::from_millis);
    let client = verb.connection.client()?;
    let clear = pause.is_some() && io::stdout().is_terminal() && !verb.connection.json;
    loop {
        refresh(&verb, &client, clear).await?;
        match pause {
            Some(pause) if !output::is_stdout_closed() => sleep(pause.max(MIN_REFRESH_INTERVAL)).await,
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn refresh(verb: &Ps, client: &Client, clear: bool) -> anyhow::Result<()> {
    let swarm = client.swarm().await?;
    let vms = live_vms::all(client, &swarm.value).await?;
    let ended = if verb.all { Some(client.ended_vms(MAX_ENDED_VMS).await?.value.vms) } else { None };
    if clear {
        output::bytes(CLEAR)?;
    }
    match (ended, verb.connection.json) {
        (None, true) if live_vms::is_complete(&swarm.value) => output::json(&swarm.text)?,
        (None, true) => output::value(&SwarmStatus { vms, ..swarm.value })?,
        (None, false) if verb.wide => show_wide(&vms)?,
        (None, false) => show(&vms)?,
        (Some(ended), json) => {
            let all: Vec<&Vm> = vms.iter().chain(&ended).collect();
            if json {
                output::value(&json!({ "vms": all }))?;
            } else {
                show_with_ended(&all)?;
            }
        }
    }
    Ok(())
}

/// Prints the VMs of a boot.
pub(super) fn show_booted(vms: &[Vm]) -> io::Result<()> {
    let now = Timestamp::now();
    let row = |vm: &Vm| {
        [
            pid(vm.pid),
            vm.id.to_string(),
            name(vm),
            vm.ip.clone(),
            vm.template.clone(),
            expires(vm, now),
            ready(vm),
        ]
    };
    output::table(["PID", "ID", "NAME", "IP", "TEMPLATE", "EXPIRES", "READY IN"], vms.iter().map(row))
}

/// Prints VMs in a table that fits most terminals, with abbreviated ids.
fn show(vms: &[Vm]) -> io::Result<()> {
    let (now, ids) = (Timestamp::now(), unique_prefixes(vms));
    let row = |(vm, id): (&Vm, String)| {
        [
            pid(vm.pid),
            id,
            name(vm),
            state(vm).to_owned(),
            memory(vm),
            cpu(vm),
            output::duration(vm.uptime),
            expires(vm, now),
            ticket(vm),
        ]
    };
    let header = ["PID", "ID", "NAME", "STATE", "MEMORY", "CPU", "UPTIME", "EXPIRES", "TICKET"];
    output::table(header, vms.iter().zip(ids).map(row))
}

/// Prints VMs with all columns.
fn show_wide(vms: &[Vm]) -> io::Result<()> {
    let now = Timestamp::now();
    let row = |vm: &Vm| {
        [
            pid(vm.pid),
            vm.id.to_string(),
            name(vm),
            vm.ip.clone(),
            state(vm).to_owned(),
            vm.template.clone(),
            memory(vm),
            cpu(vm),
            output::duration(vm.uptime),
            expires(vm, now),
            ticket(vm),
            ready(vm),
        ]
    };
    let header = [
        "PID", "ID", "NAME", "IP", "STATE", "TEMPLATE", "MEMORY", "CPU", "UPTIME", "EXPIRES", "TICKET",
        "READY IN",
    ];
    output::table(header, vms.iter().map(row))
}

/// Prints running and ended VMs.
fn show_with_ended(vms: &[&Vm]) -> io::Result<()> {
    let row = |vm: &&Vm| {
        [
            pid(vm.pid),
            vm.id.to_string(),
            name(vm),
            state(vm).to_owned(),
            output::duration(vm.uptime),
            output::time(vm.ended_at),
            vm.reason.map_or("-", |reason| reason.as_str()).to_owned(),
        ]
    };
    output::table(["PID", "ID", "NAME", "STATE", "UPTIME", "ENDED", "REASON"], vms.iter().map(row))
}

/// Prints the state of a VM after a change of it.
pub(super) fn show_state(vm: &Answered<Vm>, as_json: bool) -> io::Result<()> {
    if as_json {
        output::json(&vm.text)
    } else {
        output::line(&format!("{} {} {}", pid(vm.pid), vm.id, state(vm)))
    }
}

/// Abbreviates ids to the shortest length at which all of them differ.
fn unique_prefixes(vms: &[Vm]) -> Vec<String> {
    let ids: Vec<String> = vms.iter().map(|vm| vm.id.to_string()).collect();
    let mut length = MIN_ID_LENGTH;
    while length < ids.first().map_or(0, String::len) {
        let distinct: HashSet<&str> = ids.iter().map(|id| &id[..length]).collect();
        if distinct.len() == ids.len() {
            break;
        }
        length += 1;
    }
    ids.into_iter().map(|id| id.chars().take(length).collect()).collect()
}

/// The process id; a VM on disk has none.
pub(super) fn pid(pid: Option<u32>) -> String {
    pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())
}

fn name(vm: &Vm) -> String {
    vm.name.as_ref().map_or_else(|| "-".to_owned(), VmName::to_string)
}

/// The memory that the VM holds, if it was sampled, and the memory of its guest.
fn memory(vm: &Vm) -> String {
    match vm.usage {
        Some(usage) => format!("{} / {} MiB", usage.memory_mb, vm.memory_mb),
        None => format!("{} MiB", vm.memory_mb),
    }
}

/// The processor time since the restore.
fn cpu(vm: &Vm) -> String {
    vm.usage.map_or_else(|| "-".to_owned(), |usage| output::duration(usage.cpu_ms as f64 / 1000.0))
}

fn ready(vm: &Vm) -> String {
    format!("{:.0} ms", vm.boot.ready_ms)
}

fn ticket(vm: &Vm) -> String {
    vm.ticket.map_or_else(|| "-".to_owned(), |ticket| ticket.to_string())
}

/// Time until the VM's lifetime ends.
fn expires(vm: &Vm, now: Timestamp) -> String {
    let left = |at: Timestamp| output::duration(at.duration_since(now).as_secs_f64().max(0.0));
    vm.expires_at.map_or_else(|| "-".to_owned(), left)
}

fn state(vm: &Vm) -> &'static str {
    match vm.state {
        VmState::Running => "running",
        VmState::Paused if vm.paused_to == Some(PausedTo::Disk) => match vm.snapshot_state {
            Some(TemplateState::Outdated) => "on disk, outdated",
            Some(TemplateState::Damaged) => "on disk, damaged",
            _ => "on disk",
        },
        VmState::Paused => "paused",
        VmState::Ended => "ended",
    }
}
