//! `skep snapshot`.

use std::process::ExitCode;

use clap::Args;
use skep_api::{swarm::SnapshotRequest, templates::TemplateName};

use super::template;
use crate::{connection::Connection, output, target::vm_reference};

/// Store a running VM as a template.
///
/// The template has the VM's files, memory and processes as they are. The VM stands still for a moment and runs on.
/// `skep boot --template NAME` continues from there, `skep template rm NAME` deletes it.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// The VM, by process id, id, name, host name or address.
    #[arg(value_name = "VM", value_parser = vm_reference)]
    vm: String,
    /// Name of the template: a-z, 0-9 and `-`.
    #[arg(value_name = "NAME")]
    name: TemplateName,
    /// Description, one line.
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Snapshot) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let what = format!("storing `{}`", verb.name);
    let request = SnapshotRequest { name: verb.name, description: verb.description };
    let stored = output::with_spinner(&what, client.snapshot_vm(&verb.vm, &request)).await?;
    if verb.connection.json {
        output::json(&stored.text)?;
    } else {
        template::table(std::slice::from_ref(&stored.value))?;
    }
    Ok(ExitCode::SUCCESS)
}
