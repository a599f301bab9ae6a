//! `skep ticket wait`.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use clap::Args;
use futures_util::StreamExt;
use skep_api::{
    TicketId,
    events::STREAM_GAP,
    tickets::{Ticket, TicketStatus},
};
use skep_client::{Answered, Client, Error, EventQuery};
use tokio::time::{sleep, timeout};

use super::show::printable;
use crate::{
    connection::Connection,
    output,
    verbs::{boot::parse_milliseconds, events::is_transient},
};

/// Exit code if at least one ticket failed.
pub(super) const SOME_FAILED: u8 = 3;
/// Exit code after --timeout, as in timeout(1).
const TIMED_OUT: u8 = 124;
/// The events that finish a ticket or delete it.
const FINAL_EVENTS: &str = "ticket.completed,ticket.failed,ticket.deleted";
/// Delay before the first reconnection; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);

const AFTER_HELP: &str = "Exit codes: 0 all are completed; 1 refused, deleted, or no server; 2 the command line is wrong; \
3 all are finished, and at least one failed; 124 the time of --timeout is over.";

/// Wait until tickets are completed or failed, and print each one as it finishes.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Wait {
    /// Ids of the tickets.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TicketId>,
    /// Maximum duration of the wait, such as 90s or 2h [default: unlimited].
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(verb: Wait) -> anyhow::Result<ExitCode> {
    let limit = verb.timeout.as_deref().map(parse_milliseconds).transpose()?.map(Duration::from_millis);
    let mut waiter = Waiter {
        client: verb.connection.client()?,
        json: verb.connection.json,
        open: verb.ids.into_iter().collect(),
        failed: false,
    };
    let in_time = match limit {
        None => waiter.wait_for_all().await.map(Some)?,
        Some(limit) => timeout(limit, waiter.wait_for_all()).await.ok().transpose()?,
    };
    if in_time.is_none() {
        let ids: Vec<String> = waiter.open.iter().map(TicketId::to_string).collect();
        output::eprint_line(&format!("skep: timeout; not finished: {}", ids.join(" ")));
        return Ok(ExitCode::from(TIMED_OUT));
    }
    Ok(if waiter.failed { ExitCode::from(SOME_FAILED) } else { ExitCode::SUCCESS })
}

struct Waiter {
    client: Client,
    json: bool,
    open: BTreeSet<TicketId>,
    failed: bool,
}

impl Waiter {
    async fn wait_for_all(&mut self) -> anyhow::Result<()> {
        let mut delay = MIN_RETRY_DELAY;
        loop {
            match self.follow().await {
                Err(WaitError::Transient(error)) => {
                    if delay == MIN_RETRY_DELAY {
                        output::eprint_line(&format!("skep: {error}; trying again until the server answers"));
                    }
                    sleep(delay).await;
                    delay = (delay * 2).min(MAX_RETRY_DELAY);
                }
                Err(WaitError::Final(error)) => return Err(error),
                Ok(()) if self.open.is_empty() => return Ok(()),
                Ok(()) => delay = MIN_RETRY_DELAY,
            }
        }
    }

    /// Checks all tickets once, then each one that an event names. Returns when all are finished or the stream ends.
    async fn follow(&mut self) -> Result<(), WaitError> {
        let query = EventQuery { types: Some(FINAL_EVENTS.to_owned()), ..EventQuery::default() };
        // Subscribe first, so that no event between subscription and check is lost.
        let mut events = self.client.follow_events(&query).await?;
        for id in self.open.clone() {
            self.check(id).await?;
        }
        while !self.open.is_empty()
            && let Some(followed) = events.next().await
        {
            let event = followed?.event;
            if event.kind == STREAM_GAP {
                break;
            }
            let id = event.body.get("ticket").and_then(|id| id.as_str()?.parse().ok());
            if let Some(id) = id.filter(|id| self.open.contains(id)) {
                self.check(id).await?;
            }
        }
        Ok(())
    }

    async fn check(&mut self, id: TicketId) -> Result<(), WaitError> {
        let ticket = self.client.ticket(id).await?;
        if matches!(ticket.status, TicketStatus::Completed | TicketStatus::Failed) {
            self.open.remove(&id);
            self.failed |= ticket.status == TicketStatus::Failed;
            self.print(&ticket).map_err(WaitError::Final)?;
        }
        Ok(())
    }

    fn print(&self, ticket: &Answered<Ticket>) -> anyhow::Result<()> {
        if self.json {
            output::json(&ticket.text)?;
        } else {
            output::line(&format!("{} {}: {}", ticket.id, ticket.status, printable(&ticket.title)))?;
        }
        Ok(())
    }
}

/// Why waiting ended early.
enum WaitError {
    /// A retry may succeed.
    Transient(Error),
    Final(anyhow::Error),
}

impl From<Error> for WaitError {
    fn from(error: Error) -> Self {
        if is_transient(&error) { Self::Transient(error) } else { Self::Final(error.into()) }
    }
}
