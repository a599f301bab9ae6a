//! `skep resume`.

use std::process::ExitCode;

use clap::Args;
use skep_api::swarm::ResumeRequest;

use super::ps;
use crate::{connection::Connection, output, target::vm_reference};

/// Continue paused VMs where they were stopped.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// VMs, each by process id, id, name, host name or address.
    #[arg(required = true, value_name = "VM", value_parser = vm_reference)]
    vms: Vec<String>,
    /// Start VMs that are paused to disk again from their disks alone: with their files, and without their processes. That also
    /// works if they cannot continue after an update of skep, of QEMU or of the processor.
    #[arg(long)]
    without_memory: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Resume) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let request = ResumeRequest { memory: verb.without_memory.then_some(false) };
    let mut code = ExitCode::SUCCESS;
    for vm in &verb.vms {
        let resume = client.resume_vm(vm, &request);
        match output::with_spinner(&format!("resuming {vm}"), resume).await {
            Ok(answer) => ps::show_state(&answer, verb.connection.json)?,
            // A failure does not stop the loop: the other VMs are still resumed.
            Err(error) => code = output::report_error(&error.into()),
        }
    }
    Ok(code)
}
