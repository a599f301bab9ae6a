//! `skep ls`.

use std::process::ExitCode;

use clap::Args;
use skep_api::files::{FileType, FolderEntry, ListFolder};

use crate::{connection::Connection, output, place::PlaceOption};

/// List a folder of the server's workspace or of a VM.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Folder; relative paths start at the workspace, in a VM at /root.
    #[arg(default_value = "")]
    path: String,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Ls) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let place = verb.place.open(&client).await?;
    let mut list = ListFolder::first_page(place.path(&verb.path)?);
    let mut entries = Vec::new();
    loop {
        let page = place.remote.run(&list).await?;
        list.cursor.clone_from(&page.next_cursor);
        if verb.connection.json {
            output::json(&page.text)?;
        } else {
            entries.extend(page.value.entries);
        }
        if list.cursor.is_none() {
            break;
        }
    }
    if !verb.connection.json && !entries.is_empty() {
        output::table(["MODE", "UID", "GID", "BYTES", "MODIFIED", "NAME"], entries.iter().map(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &FolderEntry) -> [String; 6] {
    let (sign, mark) = match entry.r#type {
        FileType::File => ('-', String::new()),
        FileType::Directory => ('d', "/".to_owned()),
        FileType::Symlink => ('l', entry.target.as_ref().map(|to| format!(" -> {to}")).unwrap_or_default()),
        FileType::Other => ('?', String::new()),
    };
    [
        format!("{sign}{}", entry.mode),
        entry.uid.to_string(),
        entry.gid.to_string(),
        entry.size_bytes.to_string(),
        output::time(Some(entry.modified_at)),
        output::visible(&format!("{}{mark}", entry.name)),
    ]
}
