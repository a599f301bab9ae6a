//! `skep run`.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;
use skep_api::{
    ErrorCode, VmName,
    swarm::{BootRequest, Vm},
};
use skep_client::Client;

use super::{
    boot::{boot_unless_signalled, parse_metadata, parse_milliseconds},
    exec::{self, Program},
};
use crate::{
    connection::Connection,
    output,
    target::{UsageError, check_option, command_start},
};

const AFTER_HELP: &str = "  skep run --rm 'uname -a'             a VM for one command
  skep run --name web -- ls -l /       all words after `--` are the command's

Without --rm the VM keeps running, and its name or id is printed on standard error at the end.

Exit codes: as of `skep exec`: the command's own; 128+n if signal n ended it or this verb; 124 if its timeout did;
125 if no VM was booted or the command did not run; 2 if the command line is wrong.";

/// Boot a VM and run a command in it.
///
/// The output of the command is passed on unchanged, also to a terminal.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, override_usage = "skep run [OPTIONS] COMMAND...")]
pub(crate) struct Run {
    /// End the VM when the command has ended.
    #[arg(long)]
    rm: bool,
    /// Name of the VM, unique among the account's running VMs.
    #[arg(long, value_name = "NAME")]
    name: Option<VmName>,
    /// Name of the template [default: the base template].
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Lifetime of the VM, such as 90s, 30m, 8h or 2d [default: that of the server, unlimited unless it is configured].
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// Metadata for the VM's record; may be given several times.
    #[arg(short, long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    connection: Connection,
}

impl Run {
    /// Refuses a command line without a command or with an unknown option.
    ///
    /// # Errors
    /// [`UsageError`].
    pub(crate) fn check(&self, arguments: &[OsString]) -> Result<(), UsageError> {
        let Program { command, line, .. } = &self.program;
        match (command.first(), command_start(command, arguments)) {
            (Some(first), Some(at)) if arguments[..at].last().is_none_or(|word| word != "--") => {
                check_option(first)
            }
            (None, _) if line.is_none() => Err(UsageError(
                "no command is given: skep run [--rm] COMMAND...; `skep boot` boots without one".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

pub(crate) async fn run(verb: Run) -> anyhow::Result<ExitCode> {
    Ok(boot_and_run(verb).await.unwrap_or_else(|error| exec::report_failure(&error)))
}

async fn boot_and_run(verb: Run) -> anyhow::Result<ExitCode> {
    let request = BootRequest {
        name: verb.name,
        template: verb.template,
        ttl_ms: verb.ttl.as_deref().map(parse_milliseconds).transpose()?,
        metadata: if verb.metadata.is_empty() { None } else { Some(parse_metadata(&verb.metadata)?) },
        ..BootRequest::default()
    };
    let client = verb.connection.client()?;
    // Before the boot: a usage error must not boot a VM.
    let (mut command, input) = verb.program.request(None, verb.connection.json)?;
    let booted = match boot_unless_signalled(&client, &request).await? {
        Ok(booted) => booted.value,
        Err(code) => return Ok(code),
    };
    let Some(vm) = booted.vms.into_iter().next() else { anyhow::bail!("the server booted no VM") };
    command.vm = Some(skep_api::exec::VmField::Text(vm.id.to_string()));
    let outcome = exec::execute(&client, &command, input, verb.connection.json).await;
    if verb.rm {
        end(&client, &vm).await;
    } else {
        let name = vm.name.as_ref().map_or_else(|| vm.id.to_string(), VmName::to_string);
        output::eprint_line(&format!("skep: the VM {name} keeps running; `skep end {name}` ends it"));
    }
    outcome
}

/// Ends the VM. A failure is printed, but the command's exit code is kept.
async fn end(client: &Client, vm: &Vm) {
    match client.end_vm(&vm.id.to_string()).await {
        Ok(_) => {}
        // The command may have shut down the VM.
        Err(error) if error.code() == ErrorCode::UnknownVm => {}
        Err(error) => output::eprint_line(&format!("skep: the VM {} could not be ended: {error}", vm.id)),
    }
}
