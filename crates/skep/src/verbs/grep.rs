//! `skep grep`.

use std::process::ExitCode;

use clap::Args;
use skep_api::files::{GrepFiles, MatchedLine};

use crate::{connection::Connection, output, place::PlaceOption};

/// Search file contents.
#[derive(Debug, Args)]
pub(crate) struct Grep {
    /// Regular expression.
    pattern: String,
    /// Folder or file to search; relative paths start at the workspace, in a VM at /root.
    #[arg(default_value = "")]
    path: String,
    /// Search only files whose path below the folder matches this glob.
    #[arg(short, long)]
    glob: Option<String>,
    /// Number of lines to print before and after each match.
    #[arg(short = 'C', long, default_value_t = 0)]
    context: u32,
    /// Maximum number of matches.
    #[arg(short = 'n', long, default_value_t = 1_000)]
    limit: u32,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Grep) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let place = verb.place.open(&client).await?;
    let grep = GrepFiles {
        path: place.path(&verb.path)?,
        pattern: verb.pattern,
        glob: verb.glob,
        context: verb.context,
        limit: verb.limit,
    };
    let found = place.remote.run(&grep).await?;
    if verb.connection.json {
        output::json(&found.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    for matched in &found.matches {
        show(matched)?;
    }
    if found.truncated {
        output::eprint_line("skep: there may be more matches; narrow the search or raise --limit");
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a match in the format of grep: `:` after the number of a matching line, `-` after that of a context line.
fn show(matched: &MatchedLine) -> std::io::Result<()> {
    let path = output::visible(&matched.path);
    let first = matched.line.saturating_sub(matched.before.len() as u64);
    for (number, text) in (first..).zip(&matched.before) {
        output::line(&format!("{path}-{number}-{}", output::visible(text)))?;
    }
    output::line(&format!("{path}:{}:{}", matched.line, output::visible(&matched.text)))?;
    for (number, text) in (matched.line + 1..).zip(&matched.after) {
        output::line(&format!("{path}-{number}-{}", output::visible(text)))?;
    }
    Ok(())
}
