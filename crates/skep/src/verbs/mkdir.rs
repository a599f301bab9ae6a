//! `skep mkdir`.

use std::process::ExitCode;

use clap::Args;
use skep_api::files::MakeFolder;
use skep_client::Client;

use crate::{connection::Connection, output, place::PlaceOption, remote_path::RemotePath, transfer};

/// Create folders in the server's workspace or in a VM.
#[derive(Debug, Args)]
pub(crate) struct Mkdir {
    /// Folders; relative paths start at the workspace, with --vm at /root of that VM. VM:PATH and server:PATH work too.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Create missing parent folders too; accept folders that exist.
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Mkdir) -> anyhow::Result<ExitCode> {
    let paths = verb.paths.iter().map(|path| RemotePath::parse(&verb.place, path));
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    let client = verb.connection.client()?;
    let mut code = ExitCode::SUCCESS;
    for located in &paths {
        if let Err(error) = make(&client, &verb, located).await {
            code = output::report_error(&error);
        }
    }
    Ok(code)
}

async fn make(client: &Client, verb: &Mkdir, located: &RemotePath) -> anyhow::Result<()> {
    let (place, path) = located.open(client).await?;
    if !verb.parents
        && let Some(parent) = path.as_path().parent()
    {
        anyhow::ensure!(
            transfer::is_folder(&place.remote, parent).await?.is_some(),
            "{} does not exist; -p creates it too",
            parent.display()
        );
    }
    let make = MakeFolder { path, mode: None };
    let made = place.remote.run(&make).await?;
    anyhow::ensure!(made.created || verb.parents, "{} exists already", make.path.as_path().display());
    if verb.connection.json {
        output::json(&made.text)?;
    }
    Ok(())
}
