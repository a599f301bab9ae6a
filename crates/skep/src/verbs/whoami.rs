//! `skep whoami`.

use std::process::ExitCode;

use clap::Args;
use skep_api::keys::IdentifyCaller;

use crate::{connection::Connection, output};

/// Show the key in use: its account, scopes and limits.
#[derive(Debug, Args)]
pub(crate) struct Whoami {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Whoami) -> anyhow::Result<ExitCode> {
    let answer = verb.connection.client()?.run(&IdentifyCaller {}).await?;
    if verb.connection.json {
        output::json(&answer.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let scopes: Vec<&str> = answer.scopes.iter().map(|scope| scope.as_str()).collect();
    output::line(&format!("server   {}", verb.connection.url()))?;
    output::line(&format!("key      {} {} {}", answer.key.id, answer.key.prefix, answer.key.name))?;
    output::line(&format!("account  {} {}", answer.account.id, answer.account.name))?;
    output::line(&format!("scopes   {}", scopes.join(" ")))?;
    output::line(&format!("roots    {}", answer.roots.join(":")))?;
    if let Some(vm) = answer.vm {
        output::line(&format!("VM       {vm}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
