//! `skep cleanup`.

use std::process::ExitCode;

use clap::Args;

use crate::{connection::Connection, output};

/// End all VMs of the account.
#[derive(Debug, Args)]
pub(crate) struct Cleanup {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Cleanup) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let answer = output::with_spinner("ending all VMs", client.cleanup()).await?;
    if verb.connection.json {
        output::json(&answer.text)?;
    } else {
        output::line(&format!("{} ended", output::counted(answer.terminated, "VM")))?;
    }
    Ok(ExitCode::SUCCESS)
}
