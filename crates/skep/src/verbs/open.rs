//! `skep open`.

use std::process::ExitCode;

use clap::Args;

use crate::{connection::Connection, output};

/// Print a link that logs a browser in once.
///
/// The link is valid for 10 minutes. The browser has the rights of the key in use.
#[derive(Debug, Args)]
pub(crate) struct Open {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Open) -> anyhow::Result<ExitCode> {
    let answer = verb.connection.client()?.create_session_link().await?;
    if verb.connection.json {
        output::json(&answer.text)?;
    } else {
        output::line(&answer.url)?;
    }
    Ok(ExitCode::SUCCESS)
}
