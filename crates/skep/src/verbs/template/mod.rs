//! `skep template`: the snapshots that VMs are restored from.

mod create;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

pub(super) use self::show::table;
use crate::{connection::Connection, output};

/// List, create and delete templates, from which VMs are booted.
#[derive(Debug, Args)]
pub(crate) struct Template {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the templates that VMs can be booted from.
    List(show::List),
    /// Show a template.
    Show(show::Show),
    /// Create a template with the disk of another one and a size of its own.
    Create(create::Create),
    /// Delete templates.
    Rm(Rm),
}

pub(crate) async fn run(verb: Template) -> anyhow::Result<ExitCode> {
    match verb.verb {
        Verb::List(verb) => show::list(verb).await,
        Verb::Show(verb) => show::show(verb).await,
        Verb::Create(verb) => create::create(verb).await,
        Verb::Rm(verb) => rm(verb).await,
    }
}

/// Delete templates that no VM and no other template needs.
#[derive(Debug, Args)]
struct Rm {
    /// Names or ids of the templates.
    #[arg(required = true, value_name = "TEMPLATE")]
    templates: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

async fn rm(verb: Rm) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let mut code = ExitCode::SUCCESS;
    for template in verb.templates {
        let deletion = client.delete_template(&template);
        match output::with_spinner(&format!("deleting {template}"), deletion).await {
            Ok(deleted) if verb.connection.json => output::json(&deleted.text)?,
            Ok(deleted) => output::line(&format!("{} is deleted", deleted.name))?,
            // A failure does not stop the loop: the other templates are still deleted.
            Err(error) => code = output::report_error(&error.into()),
        }
    }
    Ok(code)
}
