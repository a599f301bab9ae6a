//! `skep openapi`.

use std::process::ExitCode;

use clap::Args;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  skep openapi > openapi.json                # to generate a client of this version";

/// Print the OpenAPI document of the API; no server needs to run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Openapi {}

pub(crate) async fn run(_: Openapi) -> anyhow::Result<ExitCode> {
    output::bytes(&skep_openapi::document().await?)?;
    Ok(ExitCode::SUCCESS)
}
