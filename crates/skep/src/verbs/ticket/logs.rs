//! `skep ticket logs`.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Args;
use data_encoding::BASE64;
use futures_util::StreamExt;
use skep_api::TicketId;
use skep_client::{Client, Error, LogEvent, TicketLogQuery};
use tokio::time::sleep;

use crate::{connection::Connection, output, signals::Signals, verbs::events::is_transient};

/// Delay before the server is contacted again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const AFTER_HELP: &str = "The log has the output of the command of `skep boot --ticket ID --command COMMAND`: standard output and
standard error in their original order, unchanged. The server keeps the last 4 MiB of each attempt for 30 days, even if
the VM has ended.

Exit codes: 0 done; 1 refused, failed, or no server; 2 the command line is wrong; 128 and the number of the signal that
ended it.";

/// Print the output of the command that worked on a ticket in its VM.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Logs {
    /// Id of the ticket.
    id: TicketId,
    /// Follow the output until the command ends.
    #[arg(short, long, conflicts_with = "json")]
    follow: bool,
    /// Attempt [default: the latest one with a log].
    #[arg(long, value_name = "NUMBER")]
    attempt: Option<u32>,
    /// Offset of the first byte to print; with --json, the end of an earlier page.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(verb: Logs) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let query = TicketLogQuery { attempt: verb.attempt, vm: None, offset: verb.offset };
    if verb.connection.json {
        output::json(&client.ticket_log(verb.id, query).await?.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut signals = Signals::listen()?;
    let printing = async {
        match verb.follow {
            true => follow(&client, verb.id, query).await,
            false => print(&client, verb.id, query).await,
        }
    };
    tokio::select! {
        printed = printing => printed.map(|()| ExitCode::SUCCESS),
        code = signals.next_exit_code() => Ok(code),
    }
}

/// Prints the existing log, page by page.
async fn print(client: &Client, id: TicketId, mut query: TicketLogQuery) -> anyhow::Result<()> {
    loop {
        let page = client.ticket_log(id, query).await?.value;
        note_gap(query.offset, page.offset);
        write(&page.output)?;
        if !page.truncated {
            return Ok(());
        }
        // Continue with the same attempt, even if a later one starts meanwhile.
        query = TicketLogQuery { attempt: Some(page.attempt), vm: Some(page.vm), offset: page.next_offset };
    }
}

/// Prints the existing and new output. Reconnects if the connection is lost.
async fn follow(client: &Client, id: TicketId, mut query: TicketLogQuery) -> anyhow::Result<()> {
    let found = client.ticket_log(id, query).await?.value;
    note_gap(query.offset, found.offset);
    query = TicketLogQuery { attempt: Some(found.attempt), vm: Some(found.vm), ..query };
    loop {
        match follow_once(client, id, &mut query).await {
            Ok(()) => return Ok(()),
            Err(FollowError::Client(error)) if is_transient(&error) => {
                output::eprint_line(&format!("skep: {error}; trying again until the server answers"));
                sleep(RETRY_DELAY).await;
            }
            Err(FollowError::Client(error)) => return Err(error.into()),
            Err(FollowError::Fatal(error)) => return Err(error),
        }
    }
}

/// Why following the log ended early.
enum FollowError {
    Client(Error),
    Fatal(anyhow::Error),
}

async fn follow_once(client: &Client, id: TicketId, query: &mut TicketLogQuery) -> Result<(), FollowError> {
    let mut events = client.follow_ticket_log(id, *query).await.map_err(FollowError::Client)?;
    while let Some(event) = events.next().await {
        match event.map_err(FollowError::Client)? {
            LogEvent::Output(piece) => {
                write(&piece.data).map_err(FollowError::Fatal)?;
                query.offset = piece.offset;
            }
            LogEvent::End(_) => return Ok(()),
        }
    }
    let message = "the server closed the stream before the command's end was known";
    Err(FollowError::Fatal(anyhow::anyhow!(message)))
}

fn note_gap(wanted: u64, found: u64) {
    if found > wanted {
        output::eprint_line(&format!("skep: {} bytes before this are no longer kept", found - wanted));
    }
}

fn write(data: &str) -> anyhow::Result<()> {
    let bytes = BASE64.decode(data.as_bytes()).context("the server's answer is not base64")?;
    Ok(output::bytes(&bytes)?)
}
