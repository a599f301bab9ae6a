//! `skep rename`.

use std::process::ExitCode;

use clap::Args;
use skep_api::{VmName, swarm::ChangeRequest};

use super::ps;
use crate::{connection::Connection, output, target::vm_reference};

/// Change the name of a VM.
#[derive(Debug, Args)]
pub(crate) struct Rename {
    /// VM: process id, id, name, host name or address.
    #[arg(value_name = "VM", value_parser = vm_reference)]
    vm: String,
    /// New name: 1 to 63 characters a-z, 0-9 and `-`; unique among the account's running VMs.
    #[arg(required_unless_present = "none", value_name = "NAME")]
    name: Option<VmName>,
    /// Remove the name.
    #[arg(long, conflicts_with = "name")]
    none: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Rename) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let request = ChangeRequest { name: Some(verb.name), ..ChangeRequest::default() };
    let changed = client.change_vm(&verb.vm, &request).await?;
    if verb.connection.json {
        output::json(&changed.text)?;
    } else {
        let name = changed.name.as_ref().map_or("-", VmName::as_str);
        output::line(&format!("{} {} {name}", ps::pid(changed.pid), changed.id))?;
    }
    Ok(ExitCode::SUCCESS)
}
