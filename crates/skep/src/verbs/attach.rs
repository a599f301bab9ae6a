//! `skep attach`.

use std::process::ExitCode;

use clap::Args;
use skep_api::{VmRef, swarm::Vm};
use skep_client::Client;

use super::logs::{attach, follow};
use crate::{
    connection::Connection,
    live_vms,
    target::{UsageError, vm_reference},
};

/// Prefix of the ids of commands.
const EXEC_PREFIX: &str = "exec_";
const AFTER_HELP: &str = "  skep attach web                   the command that the VM `web` was booted with
  skep attach exec_01jv...          the same by the command's id, which the VM's record has (`skep ps --json`)
  skep attach --vm web exec_01jv... a command that was started with `stream: true`, by the header `Skep-Exec-Id`

If a signal ends this verb, it also ends the command, unless a VM was booted with it.

Exit codes: the command's own; 128+n if signal n ended it or this verb; 124 if its timeout did; 1 refused, failed, or
no server; 2 if the command line is wrong.";

/// Follow a running command of a VM.
///
/// Prints the output that was kept, then new output until the command ends.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Attach {
    /// A VM that was booted with a command, or the id of a command.
    #[arg(value_name = "VM_OR_EXEC")]
    target: String,
    /// VM of the command [default: the VM that was booted with it].
    #[arg(long, value_name = "VM", value_parser = vm_reference)]
    vm: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Attach) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let target = verb.target.as_str();
    if target.starts_with(EXEC_PREFIX) {
        let vm = match verb.vm {
            Some(vm) => vm,
            None => vm_booted_with(&client, target).await?,
        };
        return attach(&client, &vm, target).await;
    }
    if verb.vm.is_some() || VmRef::parse(target).is_none() {
        let message = format!(
            "`{target}` is not the id of a command (`exec_` and 26 characters); give one, or a VM alone"
        );
        return Err(UsageError(message).into());
    }
    follow(&client, target).await
}

/// Finds the VM that was booted with the command.
async fn vm_booted_with(client: &Client, exec_id: &str) -> anyhow::Result<String> {
    let swarm = client.swarm().await?.value;
    let is_meant = |vm: &Vm| vm.exec_id.as_deref() == Some(exec_id);
    let found = match swarm.vms.iter().find(|vm| is_meant(vm)) {
        Some(vm) => Some(vm.clone()),
        None => live_vms::all(client, &swarm).await?.into_iter().find(is_meant),
    };
    found.map(|vm| vm.id.to_string()).ok_or_else(|| {
        anyhow::anyhow!("no VM of this account was booted with the command `{exec_id}`; give its VM by --vm")
    })
}
