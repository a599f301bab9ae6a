//! `skep write`.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use skep_api::{
    AbsolutePath,
    files::{ContentEncoding, WriteFile},
};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use crate::{connection::Connection, output, place::PlaceOption};

/// Size of one read of standard input, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Write standard input to a file.
///
/// The file is replaced atomically: readers see either the old or the new content.
#[derive(Debug, Args)]
pub(crate) struct Write {
    /// File; relative paths start at the workspace, in a VM at /root.
    path: String,
    /// Permission bits in octal [default: 0644, or those of the replaced file].
    #[arg(short, long, value_name = "MODE", value_parser = mode)]
    mode: Option<u32>,
    /// Append to the file; the input must be UTF-8 text.
    #[arg(short, long, conflicts_with = "mode")]
    append: bool,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Write) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let place = verb.place.open(&client).await?;
    let path = place.path(&verb.path)?;
    if io::stdin().is_terminal() {
        output::eprint_line("skep: type the content and end it with Ctrl-D");
    }
    let written = if verb.append {
        let mut text = String::new();
        let read = tokio::io::stdin().read_to_string(&mut text).await;
        read.context("the input is not UTF-8 text or cannot be read; --append takes text only")?;
        place.remote.run(&append(path, text)).await?
    } else {
        place
            .remote
            .write(&path, verb.mode, ReaderStream::with_capacity(tokio::io::stdin(), CHUNK_BYTES))
            .await?
    };
    if verb.connection.json {
        output::json(&written.text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Appends a text to a file.
fn append(path: AbsolutePath, content: String) -> WriteFile {
    let encoding = ContentEncoding::default();
    WriteFile { path, content, encoding, mode: None, create_parents: true, append: true }
}

fn mode(text: &str) -> Result<u32, String> {
    let octal = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o1777);
    octal.ok_or_else(|| format!("`{text}` is not a mode; give octal digits from 0000 to 1777, such as 0644"))
}
