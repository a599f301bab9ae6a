//! `skep find`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use skep_api::files::{FileType, PatternSyntax, SearchFiles};

use crate::{connection::Connection, output, place::PlaceOption};

/// Find files by name.
#[derive(Debug, Args)]
pub(crate) struct Find {
    /// Glob such as '*.rs' or 'src/**', or regular expression such as '_test\.py$'.
    pattern: String,
    /// Folder to search; relative paths start at the workspace, in a VM at /root.
    #[arg(default_value = "")]
    path: String,
    /// Syntax of the pattern [default: derived from the pattern].
    #[arg(long, value_enum)]
    syntax: Option<Syntax>,
    /// Find only entries of this type.
    #[arg(short, long = "type", value_enum, value_name = "TYPE")]
    kind: Option<Kind>,
    /// Skip names that begin with a dot.
    #[arg(long)]
    no_hidden: bool,
    /// Skip files that .gitignore excludes.
    #[arg(long)]
    gitignore: bool,
    /// Maximum number of matches.
    #[arg(short = 'n', long, default_value_t = 1_000)]
    limit: u32,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Syntax {
    Glob,
    Regex,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    File,
    Directory,
    Symlink,
}

pub(crate) async fn run(verb: Find) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let place = verb.place.open(&client).await?;
    let search = SearchFiles {
        path: place.path(&verb.path)?,
        pattern: verb.pattern,
        syntax: match verb.syntax {
            None => PatternSyntax::Auto,
            Some(Syntax::Glob) => PatternSyntax::Glob,
            Some(Syntax::Regex) => PatternSyntax::Regex,
        },
        r#type: verb.kind.map(|kind| match kind {
            Kind::File => FileType::File,
            Kind::Directory => FileType::Directory,
            Kind::Symlink => FileType::Symlink,
        }),
        hidden: !verb.no_hidden,
        gitignore: verb.gitignore,
        limit: verb.limit,
    };
    let found = place.remote.run(&search).await?;
    if verb.connection.json {
        output::json(&found.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    for file in &found.matches {
        output::line(&output::visible(&file.path))?;
    }
    if found.truncated {
        output::eprint_line("skep: there may be more matches; narrow the search or raise --limit");
    }
    Ok(ExitCode::SUCCESS)
}
