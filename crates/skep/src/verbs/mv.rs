//! `skep mv`.

use std::process::ExitCode;

use clap::Args;
use skep_api::files::MoveFile;
use skep_client::Client;

use crate::{
    connection::Connection, output, place::PlaceOption, remote_path::RemotePath, target::UsageError, transfer,
};

/// Move or rename a file or a folder within the server's workspace or within a VM.
#[derive(Debug, Args)]
pub(crate) struct Mv {
    /// File or folder; relative paths start at the workspace, with --vm at /root of that VM. VM:PATH and server:PATH
    /// work too.
    from: String,
    /// New path in the same place, or existing folder to move into.
    to: String,
    /// Replace an existing file at the new path.
    #[arg(short = 'f', long = "force")]
    overwrite: bool,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Mv) -> anyhow::Result<ExitCode> {
    let from = RemotePath::parse(&verb.place, &verb.from)?;
    let to = RemotePath::parse(&verb.place, &verb.to)?;
    let client = verb.connection.client()?;
    require_one_place(&client, &verb, &from, &to).await?;
    let (place, source) = from.open(&client).await?;
    let mut target = place.path(&to.path)?;
    if transfer::is_folder(&place.remote, target.as_path()).await? == Some(true)
        && let Some(name) = source.as_path().file_name()
    {
        target = transfer::absolute(&target.as_path().join(name))?;
    }
    let moved = place.remote.run(&MoveFile { from: source, to: target, overwrite: verb.overwrite }).await?;
    if verb.connection.json {
        output::json(&moved.text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a move between places, because the API has no such operation.
async fn require_one_place(
    client: &Client,
    verb: &Mv,
    from: &RemotePath,
    to: &RemotePath,
) -> anyhow::Result<()> {
    let same = match (&from.vm, &to.vm) {
        (from, to) if from == to => true,
        // The same VM may be given by different references, such as name and process id.
        (Some(from), Some(to)) => client.vm(from).await?.id == client.vm(to).await?.id,
        _ => false,
    };
    if same {
        return Ok(());
    }
    let (from, to) = (&verb.from, &verb.to);
    Err(UsageError(format!(
        "`{from}` and `{to}` are in different places; a path without a place is in the server's workspace; to move \
         between places: skep cp {from} {to}, then skep rm {from}"
    ))
    .into())
}
