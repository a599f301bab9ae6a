//! `skep rename`.

use std::process::ExitCode;

use clap::Args;
use skep_api::{VmName, swarm::ChangeRequest};

use crate::{
    connection::{Connection, EXIT_CODES},
    output,
    target::vm_reference,
};

/// Give a VM another name.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Rename {
    /// The VM: process id, id, name, host name or address.
    #[arg(value_name = "VM", value_parser = vm_reference)]
    vm: String,
    /// Its new name, which no other living VM of the account has: 1 to 63 of a-z, 0-9 and `-`.
    #[arg(required_unless_present = "none", value_name = "NAME")]
    name: Option<VmName>,
    /// Take its name away.
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
        output::line(&format!("{} {} {name}", changed.pid, changed.id))?;
    }
    Ok(ExitCode::SUCCESS)
}
