//! `skep ticket wait`.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use clap::Args;
use futures_util::StreamExt;
use skep_api::{
    TicketId,
    events::GAP,
    tickets::{Ticket, TicketStatus},
};
use skep_client::{Answered, Client, Error, EventQuery};
use tokio::time::{sleep, timeout};

use super::show::printable;
use crate::{
    connection::Connection,
    output,
    verbs::{boot::milliseconds, events::is_passing},
};

/// Some ticket failed.
pub(super) const SOME_FAILED: u8 = 3;
/// The time was over, as `timeout` reports it.
const TIMED_OUT: u8 = 124;
/// The events that end a wait.
const ENDS: &str = "ticket.completed,ticket.failed,ticket.deleted";
/// How long to wait before the server is asked again: first, and at the most.
const AGAIN: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(15);

const AFTER_HELP: &str = "Exit codes: 0 all are completed; 1 refused, deleted, or no server; 2 the command line is wrong; \
3 all are finished, and at least one failed; 124 the time of --timeout was over.";

/// Wait until tickets are completed or failed, and print each as it is finished.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Wait {
    /// The tickets.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TicketId>,
    /// Maximum duration of the wait, such as 90s or 2h [default: no limit].
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(verb: Wait) -> anyhow::Result<ExitCode> {
    let limit = verb.timeout.as_deref().map(milliseconds).transpose()?.map(Duration::from_millis);
    let mut waiter = Waiter {
        client: verb.connection.client()?,
        json: verb.connection.json,
        open: verb.ids.into_iter().collect(),
        failed: false,
    };
    let in_time = match limit {
        None => waiter.all().await.map(Some)?,
        Some(limit) => timeout(limit, waiter.all()).await.ok().transpose()?,
    };
    if in_time.is_none() {
        let ids: Vec<String> = waiter.open.iter().map(TicketId::to_string).collect();
        output::say(&format!("skep: the time is over; not finished: {}", ids.join(" ")));
        return Ok(ExitCode::from(TIMED_OUT));
    }
    Ok(if waiter.failed { ExitCode::from(SOME_FAILED) } else { ExitCode::SUCCESS })
}

struct Waiter {
    client: Client,
    json: bool,
    /// The tickets that are not finished.
    open: BTreeSet<TicketId>,
    failed: bool,
}

impl Waiter {
    async fn all(&mut self) -> anyhow::Result<()> {
        let mut rest = AGAIN;
        loop {
            match self.follow().await {
                Err(Interrupted::Passing(error)) => {
                    if rest == AGAIN {
                        output::say(&format!("skep: {error}; tried again until it is there"));
                    }
                    sleep(rest).await;
                    rest = (rest * 2).min(LONGEST_REST);
                }
                Err(Interrupted::Final(error)) => return Err(error),
                Ok(()) if self.open.is_empty() => return Ok(()),
                Ok(()) => rest = AGAIN,
            }
        }
    }

    /// Looks at each ticket, then at those that events name. Ends when none is open, or when the stream ends.
    async fn follow(&mut self) -> Result<(), Interrupted> {
        let query = EventQuery { types: Some(ENDS.to_owned()), ..EventQuery::default() };
        // Before the look: what happens after it is in the stream.
        let mut events = self.client.follow_events(&query).await?;
        for id in self.open.clone() {
            self.look(id).await?;
        }
        while !self.open.is_empty()
            && let Some(followed) = events.next().await
        {
            let event = followed?.event;
            if event.kind == GAP {
                break;
            }
            let id = event.body.get("ticket").and_then(|id| id.as_str()?.parse().ok());
            if let Some(id) = id.filter(|id| self.open.contains(id)) {
                self.look(id).await?;
            }
        }
        Ok(())
    }

    async fn look(&mut self, id: TicketId) -> Result<(), Interrupted> {
        let ticket = self.client.ticket(id).await?;
        if matches!(ticket.status, TicketStatus::Completed | TicketStatus::Failed) {
            self.open.remove(&id);
            self.failed |= ticket.status == TicketStatus::Failed;
            self.print(&ticket).map_err(Interrupted::Final)?;
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

/// Why a look at tickets, or the stream of their events, ended early.
enum Interrupted {
    /// The server may answer again.
    Passing(Error),
    Final(anyhow::Error),
}

impl From<Error> for Interrupted {
    fn from(error: Error) -> Self {
        if is_passing(&error) { Self::Passing(error) } else { Self::Final(error.into()) }
    }
}
