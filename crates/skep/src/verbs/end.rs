//! `skep end`.

use std::process::ExitCode;

use clap::Args;
use skep_client::Client;

use super::ps;
use crate::{connection::Connection, output, target::vm_reference};

/// End VMs.
#[derive(Debug, Args)]
pub(crate) struct End {
    /// VMs, each by process id, id, name, host name or address.
    #[arg(required = true, value_name = "VM", value_parser = vm_reference)]
    vms: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: End) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let mut code = ExitCode::SUCCESS;
    for vm in &verb.vms {
        // A failure does not stop the loop: the other VMs are still ended.
        if let Err(error) = end(&client, vm, verb.connection.json).await {
            code = output::report_error(&error);
        }
    }
    Ok(code)
}

/// Ends a VM and prints its process id and id.
pub(super) async fn end(client: &Client, vm: &str, as_json: bool) -> anyhow::Result<()> {
    let ended = client.end_vm(vm).await?;
    if as_json {
        output::json(&ended.text)?;
    } else {
        output::line(&format!("{} {}", ps::pid(ended.pid), ended.id))?;
    }
    Ok(())
}
