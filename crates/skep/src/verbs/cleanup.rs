//! `skep cleanup`.

use std::process::ExitCode;

use clap::Args;

use crate::{connection::Connection, output};

/// End all VMs.
#[derive(Debug, Args)]
pub(crate) struct Cleanup {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Cleanup) -> anyhow::Result<ExitCode> {
    let answer = verb.connection.client()?.cleanup().await?;
    if verb.connection.json {
        output::json(&answer.text)?;
    } else {
        output::line(&format!("{} ended", answer.terminated))?;
    }
    Ok(ExitCode::SUCCESS)
}
