//! `skep fork`.

use std::process::ExitCode;

use clap::Args;

use super::boot::{BootOptions, show, wait_unless_signalled};
use crate::{connection::Connection, output, target::vm_reference};

/// Boot copies of a running VM.
///
/// The copies begin with the VM's files, memory and processes, each under an identity of its own; the VM runs on.
/// Metadata, environment variables and --egress are inherited; name, lifetime and ticket are not.
#[derive(Debug, Args)]
pub(crate) struct Fork {
    /// The VM, by process id, id, name, host name or address.
    #[arg(value_name = "VM", value_parser = vm_reference)]
    vm: String,
    #[command(flatten)]
    options: BootOptions,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Fork) -> anyhow::Result<ExitCode> {
    let request = verb.options.into_request()?;
    let client = verb.connection.client()?;
    let copies = output::counted(u64::from(request.count.unwrap_or(1)), "VM");
    let fork = client.fork_vm(&verb.vm, &request);
    match wait_unless_signalled(&client, &format!("forking {copies}"), fork).await? {
        Ok(forked) => show(&forked, verb.connection.json, "forked"),
        Err(code) => Ok(code),
    }
}
