//! `skep pause`.

use std::process::ExitCode;

use clap::Args;
use skep_api::swarm::{PauseRequest, PausedTo};

use super::ps;
use crate::{connection::Connection, output, target::vm_reference};

/// Stop the processors of VMs.
///
/// The processes of a paused VM stand still and use no CPU. Its memory stays in use, unless it is paused to disk.
#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// VMs, each by process id, id, name, host name or address.
    #[arg(required = true, value_name = "VM", value_parser = vm_reference)]
    vms: Vec<String>,
    /// Where to keep their memory: in memory, or on the server's disk, which frees their memory.
    #[arg(long, value_name = "PLACE", default_value = "memory", value_parser = parse_place)]
    to: PausedTo,
    #[command(flatten)]
    connection: Connection,
}

fn parse_place(text: &str) -> Result<PausedTo, String> {
    [PausedTo::Memory, PausedTo::Disk]
        .into_iter()
        .find(|place| place.as_str() == text)
        .ok_or_else(|| "give `memory` or `disk`".to_owned())
}

pub(crate) async fn run(verb: Pause) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let request = PauseRequest { to: Some(verb.to) };
    let mut code = ExitCode::SUCCESS;
    for vm in &verb.vms {
        let pause = client.pause_vm(vm, &request);
        match output::with_spinner(&format!("pausing {vm}"), pause).await {
            Ok(answer) => ps::show_state(&answer, verb.connection.json)?,
            // A failure does not stop the loop: the other VMs are still paused.
            Err(error) => code = output::report_error(&error.into()),
        }
    }
    Ok(code)
}
