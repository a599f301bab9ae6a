//! `skep cat`.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::{connection::Connection, place::PlaceOption};

/// Print files of the server's workspace or of a VM.
///
/// The bytes are printed unchanged, also to a terminal, where they may act as control characters.
#[derive(Debug, Args)]
pub(crate) struct Cat {
    /// Files; relative paths start at the workspace, in a VM at /root.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Cat) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let place = verb.place.open(&client).await?;
    let mut out = tokio::io::stdout();
    for path in &verb.paths {
        let mut pieces = place.remote.read(&place.path(path)?).await?.into_pieces();
        while let Some(piece) = pieces.next().await {
            out.write_all(&piece?).await.context("the output was closed by its reader")?;
        }
        out.flush().await.context("the output was closed by its reader")?;
    }
    Ok(ExitCode::SUCCESS)
}
