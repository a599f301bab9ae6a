//! `skep watch`.

use std::process::ExitCode;

use clap::Args;
use futures_util::StreamExt;
use skep_api::streams::{ChangeType, FileChange};
use skep_client::{Changes, WatchedChange};

use crate::{connection::Connection, output, place::PlaceOption, remote_path::RemotePath, signals::Signals};

const AFTER_HELP: &str = "Each change is one line: created, modified, deleted or renamed, and the path. With --json, each line is an event of
the API as JSON. When changes come faster than they can be sent, some are lost; a line `overflow` marks the loss.

Exit codes: 0 the folder was removed, --count was reached, or the output was closed; 130 Ctrl-C; 1 refused, failed, no
server, or the connection was lost; 2 the command line is wrong.";

/// Print changes below a folder as they happen, until Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Watch {
    /// Folder; relative paths start at the workspace, with --vm at /root of that VM. VM:PATH and server:PATH work too.
    #[arg(default_value = ".")]
    path: String,
    /// Exit after this number of changes.
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Watch) -> anyhow::Result<ExitCode> {
    let located = RemotePath::parse(&verb.place, &verb.path)?;
    let client = verb.connection.client()?;
    let mut signals = Signals::listen()?;
    let followed = async {
        let (place, path) = located.open(&client).await?;
        let changes = place.remote.watch(&path).await?;
        output::eprint_line(&format!("skep: watching {}; Ctrl-C ends it", path.as_path().display()));
        print(changes, &verb).await
    };
    tokio::select! {
        code = followed => code,
        code = signals.next_exit_code() => Ok(code),
    }
}

async fn print(mut changes: Changes, verb: &Watch) -> anyhow::Result<ExitCode> {
    let mut left = verb.count;
    while let Some(change) = changes.next().await {
        let WatchedChange { change, text } = change?;
        if verb.connection.json {
            output::json(text.as_bytes())?;
        } else {
            output::line(&line(&change))?;
        }
        if let Some(left) = &mut left {
            *left -= 1;
        }
        if left == Some(0) || output::is_stdout_closed() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a change on one line; control characters in names become blanks.
fn line(change: &FileChange) -> String {
    let kind = match change.r#type {
        ChangeType::Created => "created",
        ChangeType::Modified => "modified",
        ChangeType::Deleted => "deleted",
        ChangeType::Renamed => "renamed",
        ChangeType::Overflow => "overflow",
    };
    let of_one_line = |path: &str| path.replace(char::is_control, " ");
    let path = of_one_line(&change.path);
    match &change.from {
        Some(from) => format!("{kind:<8}  {} -> {path}", of_one_line(from)),
        None => format!("{kind:<8}  {path}"),
    }
}
