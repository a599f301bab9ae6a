//! `skep logs`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use futures_util::stream;
use skep_api::ErrorCode;
use skep_client::{Client, ExecEvents};
use tokio::time::timeout;

use super::exec::forward_output;
use crate::{connection::Connection, output, signals::Signals, target::vm_reference};

/// After this time without output, all output so far has been received.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
const AFTER_HELP: &str = "The server keeps the last 256 KiB of each console (after a restart of the server, only later output). Of each
stream of the command it keeps the first and the last 512 KiB, until ten minutes after the command's end.

Exit codes: 0 done; with --follow those of the command: see `skep exec --help`; 1 refused, failed, or no server; 2 the
command line is wrong.";

/// Print a VM's console and the output of the command that it was booted with.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Logs {
    /// The VM: process id, id, name, host name or address.
    #[arg(value_name = "VM", value_parser = vm_reference)]
    vm: String,
    /// Print only the output of the command that the VM was booted with, until it ends.
    #[arg(short, long)]
    follow: bool,
    /// Print only the console.
    #[arg(long, conflicts_with = "follow")]
    console: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Logs) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    if verb.follow {
        return follow(&client, &verb.vm).await;
    }
    let console = client.console(&verb.vm).await?;
    if verb.connection.json {
        output::json(&console.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if console.truncated {
        output::eprint_line("skep: the beginning of the console's output is not kept");
    }
    output::bytes(output::visible_lines(&console.console).as_bytes())?;
    if !verb.console {
        print_output(&client, &verb.vm).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the output so far of the command that the VM was booted with, if any.
async fn print_output(client: &Client, vm: &str) -> anyhow::Result<()> {
    let record = client.vm(vm).await?.value;
    let Some(exec_id) = &record.exec_id else { return Ok(()) };
    let events = match client.resume_exec(&record.id.to_string(), exec_id, 0, 0).await {
        Ok(events) => events,
        // The server keeps no output of commands that ended long ago.
        Err(error) if error.code() == ErrorCode::UnknownExec => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    output::eprint_line(&format!("skep: output of the command that the VM was booted with, {exec_id}:"));
    let so_far = stream::unfold(events, |mut events: ExecEvents| async {
        let next = timeout(IDLE_TIMEOUT, futures_util::StreamExt::next(&mut events)).await.ok().flatten()?;
        Some((next, events))
    });
    forward_output(std::pin::pin!(so_far)).await?;
    Ok(())
}

/// Prints the output of the command that the VM was booted with, until it ends.
pub(super) async fn follow(client: &Client, vm: &str) -> anyhow::Result<ExitCode> {
    let record = client.vm(vm).await?.value;
    let Some(exec_id) = record.exec_id else {
        anyhow::bail!("the VM {vm} was booted without a command; `skep boot --command` boots with one");
    };
    attach(client, &record.id.to_string(), &exec_id).await
}

/// Prints the kept and new output of a command until it ends.
pub(super) async fn attach(client: &Client, vm: &str, exec_id: &str) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let followed = async { forward_output(client.resume_exec(vm, exec_id, 0, 0).await?).await };
    tokio::select! {
        code = followed => match code? {
            Some(code) => Ok(code),
            None => anyhow::bail!("the server closed the stream before the command's end was known"),
        },
        code = signals.next_exit_code() => Ok(code),
    }
}
