//! `skep ticket summary`.

use std::process::ExitCode;

use clap::Args;

use crate::{connection::Connection, output};

/// Count tickets by status.
#[derive(Debug, Args)]
pub(super) struct Summary {
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn summary(verb: Summary) -> anyhow::Result<ExitCode> {
    let answer = verb.connection.client()?.ticket_totals().await?;
    if verb.connection.json {
        output::json(&answer.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let totals = answer.value;
    let (ready, blocked, waiting) = (totals.ready, totals.blocked, totals.waiting);
    output::line(&format!(
        "pending      {} ({ready} ready, {blocked} blocked, {waiting} waiting)",
        totals.pending
    ))?;
    output::line(&format!("in progress  {}", totals.in_progress))?;
    output::line(&format!("completed    {}", totals.completed))?;
    output::line(&format!("failed       {}", totals.failed))?;
    Ok(ExitCode::SUCCESS)
}
