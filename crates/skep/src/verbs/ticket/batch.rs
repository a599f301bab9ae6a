//! `skep ticket batch`.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use skep_api::tickets::CreateTickets;

use super::show::printable;
use crate::{connection::Connection, output};

/// Maximum size of a batch in the API, in bytes.
const MAX_BATCH_BYTES: u64 = 16 << 20;

const AFTER_HELP: &str = "The file has the format of POST /api/tickets/batch:
  {\"tickets\": [{\"ref\": \"plan\", \"title\": \"Plan the port\", \"labels\": [\"port\"]},
               {\"title\": \"Port the parser\", \"dependencies\": [\"ref:plan\"]}]}
Either all tickets are created or none.";

/// Create tickets that may depend on each other, from a file, and print their ids.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Batch {
    /// File with the tickets, in JSON; - reads standard input.
    file: PathBuf,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(verb: Batch) -> anyhow::Result<ExitCode> {
    let shown = verb.file.display();
    let text = read(&verb.file).with_context(|| format!("`{shown}` cannot be read"))?;
    let request: CreateTickets =
        serde_json::from_slice(&text).with_context(|| format!("`{shown}` is not a batch of tickets"))?;
    let made = verb.connection.client()?.create_tickets(&request).await?;
    if verb.connection.json {
        output::json(&made.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let references = request.tickets.iter().map(|ticket| ticket.reference.as_deref().unwrap_or("-"));
    let row = |(ticket, reference): (&skep_api::tickets::Ticket, &str)| {
        [ticket.id.to_string(), printable(reference), printable(&ticket.title)]
    };
    output::table(["ID", "REF", "TITLE"], made.tickets.iter().zip(references).map(row))?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &PathBuf) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut from: Box<dyn Read> =
        if file.as_os_str() == "-" { Box::new(io::stdin()) } else { Box::new(File::open(file)?) };
    from.by_ref().take(MAX_BATCH_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BATCH_BYTES {
        bail!("it has more than {MAX_BATCH_BYTES} bytes; split it into several batches");
    }
    Ok(text)
}
