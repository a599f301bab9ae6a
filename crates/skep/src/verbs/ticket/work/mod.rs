//! `skep ticket work`: claims tickets, runs a command for each, sends heartbeats and reports the results.
//!
//! ```text
//! claim (waits for work) ──► command ──┬─ exit 0: completed with its result
//!    ▲                      heartbeats ├─ 126, 127, or no such program: the ticket is released, and the worker ends
//!    │                                 ├─ other exit codes: failed, with the end of the output
//!    │                                 ├─ a heartbeat is refused: the command is ended, another agent has the ticket
//!    └─────────────────────────────────┴─ a signal: the command is ended, the ticket released, and the worker ends
//! ```

mod command;
mod files;
mod output;
#[cfg(test)]
mod tests;
mod worker_folder;

use std::{future::Future, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use skep_api::{
    ErrorKind, Label, Patch, TicketId,
    tickets::{ChangeTicket, ClaimTickets, Heartbeat, Priorities, Priority, Ticket, TicketStatus},
};
use skep_client::{Answered, Client, Error, TicketQuery};
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::{
    command::{FinishedCommand, Outcome, RunningCommand},
    files::Files,
    worker_folder::WorkerFolder,
};
use super::{show::printable, wait::SOME_FAILED};
use crate::{
    connection::Connection,
    output as out, random,
    signals::Signals,
    verbs::{boot::parse_milliseconds, events::is_transient},
};

/// Time that one claim request waits for a ready ticket, in milliseconds.
const WAIT_MS: u64 = 30_000;
/// Number of heartbeats per lease.
const HEARTBEATS_PER_LEASE: u64 = 3;
/// The delay before the first retry; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);
/// Time for the server to finish a claim whose request was dropped.
const CLAIM_SETTLE_DELAY: Duration = Duration::from_millis(300);
/// Time limit for the release of a ticket when the worker stops.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "The command inherits this environment. It gets the ticket's record as JSON on standard input, and:
  SKEP_TICKET_ID, SKEP_TICKET_ATTEMPT, SKEP_TICKET_ASSIGNEE, SKEP_TICKET_TITLE
  SKEP_TICKET_FILE   a file with {\"ticket\": RECORD, \"prerequisites\": [RECORD...]}, with the results of the prerequisites
  SKEP_RESULT_FILE   a file that the command may write: the ticket's result, a JSON object of at most 1 MiB
Both files are in a private folder below $XDG_RUNTIME_DIR (else /run for root, else $TMPDIR), which is removed when the
command ends. What a killed worker left there is removed when the next one starts.

Exit code 0 completes the ticket. Its result is the object in SKEP_RESULT_FILE; else the output, if that is a JSON
object; else {\"exit_code\", \"stdout_tail\", \"stderr_tail\"} with the last 64 KiB of each. Other exit codes fail the
ticket with these and \"signal\"; so does an invalid result file. If the command cannot be started (exit code 126 or 127,
or no such program), the ticket is released and the worker ends with an error. SIGTERM and Ctrl-C end the command and
release the ticket.

A single word is a shell command line: skep ticket work 'jq .title | ./agent'

Exit codes: 0 all tickets were completed, or there was none; 1 refused, no server, or the command cannot be started; 2 the
command line is wrong; 3 at least one ticket failed; 128 and the number of the signal that ended it.";

/// Run a command for each ready ticket, one after the other, and finish the ticket with its output.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Work {
    /// Command and arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
    /// Assignee [default: a name that is unique to this process].
    #[arg(long, value_name = "NAME")]
    assignee: Option<String>,
    /// Claim only tickets of this priority; may be given several times.
    #[arg(short, long)]
    priority: Vec<Priority>,
    /// Claim only tickets with this label; may be given several times, and then all labels are required.
    #[arg(short, long = "label", value_name = "LABEL")]
    labels: Vec<Label>,
    /// Duration of the lease; a heartbeat is sent after each third of it.
    #[arg(long, value_name = "TIME", default_value = "120s")]
    lease: String,
    /// Stop after this number of tickets.
    #[arg(short = 'n', long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Stop when no ticket is ready, instead of waiting for work.
    #[arg(long)]
    drain: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(verb: Work) -> anyhow::Result<ExitCode> {
    let worker = Worker::of(&verb)?;
    let mut signals = Signals::listen()?;
    worker.report(&format!("{} waits for work", worker.assignee));
    let (mut left, mut some_failed) = (verb.count, false);
    while left != Some(0) {
        let claimed = tokio::select! {
            claimed = worker.claim() => claimed?,
            code = signals.next_exit_code() => {
                worker.release_late_claim().await;
                return Ok(code);
            }
        };
        let Some(ticket) = claimed else {
            if verb.drain {
                break;
            }
            continue;
        };
        match worker.work_on(&ticket, &mut signals).await? {
            WorkOutcome::Stopped(code) => return Ok(code),
            WorkOutcome::Failed => some_failed = true,
            WorkOutcome::Completed | WorkOutcome::Lost => {}
        }
        left = left.map(|left| left - 1);
    }
    Ok(if some_failed { ExitCode::from(SOME_FAILED) } else { ExitCode::SUCCESS })
}

/// The settings of a worker.
struct Worker {
    client: Client,
    folder: WorkerFolder,
    command: Vec<String>,
    assignee: String,
    /// Whether the assignee is unique to this process: only then all its tickets belong to this process.
    has_unique_name: bool,
    priority: Vec<Priority>,
    labels: Vec<Label>,
    lease_ms: u64,
    wait_ms: u64,
    json: bool,
}

/// The result of work on a ticket.
enum WorkOutcome {
    Completed,
    Failed,
    /// Another agent holds the ticket, or it was deleted.
    Lost,
    /// A signal ended the worker; the exit code for it.
    Stopped(ExitCode),
}

/// Why a command is stopped.
enum StopReason {
    /// This worker no longer holds the ticket.
    Lost(Error),
    /// A signal asks this process to end.
    Signal(ExitCode),
}

impl Worker {
    fn of(verb: &Work) -> anyhow::Result<Self> {
        let own = || -> anyhow::Result<String> {
            let host = rustix::system::uname();
            let [a, b, c, d, ..] = random::bytes()?;
            let number = u32::from_ne_bytes([a, b, c, d]);
            Ok(format!("{}-{}-{number:08x}", host.nodename().to_string_lossy(), std::process::id()))
        };
        Ok(Self {
            client: verb.connection.client()?,
            folder: WorkerFolder::create()?,
            command: verb.command.clone(),
            assignee: verb.assignee.clone().map_or_else(own, Ok)?,
            has_unique_name: verb.assignee.is_none(),
            priority: verb.priority.clone(),
            labels: verb.labels.clone(),
            lease_ms: parse_milliseconds(&verb.lease)?,
            wait_ms: if verb.drain { 0 } else { WAIT_MS },
            json: verb.connection.json,
        })
    }

    /// Claims a ticket; `None` if none becomes ready within the wait of one request.
    async fn claim(&self) -> anyhow::Result<Option<Ticket>> {
        let request = ClaimTickets {
            assignee: Some(self.assignee.clone()),
            count: Some(1),
            lease_ms: Some(self.lease_ms),
            priority: (!self.priority.is_empty()).then(|| Priorities::Any(self.priority.clone())),
            labels: (!self.labels.is_empty()).then(|| self.labels.clone()),
            wait_ms: Some(self.wait_ms),
        };
        let mut rest = MIN_RETRY_DELAY;
        loop {
            match self.client.claim_tickets(&request).await {
                Ok(claimed) => return Ok(claimed.value.tickets.into_iter().next()),
                Err(error) if is_transient(&error) => self.back_off(&error, &mut rest).await,
                Err(error) => return Err(error.into()),
            }
            // The claim may have succeeded although its answer was lost.
            if let Some(held) = self.find_held().await {
                return Ok(Some(held));
            }
        }
    }

    /// A ticket that this worker holds; `None` if the assignee is not unique.
    async fn find_held(&self) -> Option<Ticket> {
        if !self.has_unique_name {
            return None;
        }
        let status = Some(TicketStatus::InProgress.as_str().to_owned());
        let assignee = Some(self.assignee.clone());
        let query = TicketQuery { status, assignee, limit: Some(1), ..TicketQuery::default() };
        self.client.tickets(&query).await.ok()?.value.tickets.into_iter().next()
    }

    /// Releases a ticket of a claim that was dropped but succeeded.
    async fn release_late_claim(&self) {
        sleep(CLAIM_SETTLE_DELAY).await;
        if let Some(held) = self.find_held().await {
            self.release(&held).await;
        }
    }

    /// Runs the command for a ticket and finishes the ticket.
    async fn work_on(&self, ticket: &Ticket, signals: &mut Signals) -> anyhow::Result<WorkOutcome> {
        self.report(&format!("{} attempt {}: {}", ticket.id, ticket.attempt, printable(&ticket.title)));
        let prepared = tokio::select! {
            prepared = self.prepare(ticket) => Ok(prepared),
            error = self.send_heartbeats(ticket) => Err(StopReason::Lost(error)),
            code = signals.next_exit_code() => Err(StopReason::Signal(code)),
        };
        let started = match prepared {
            Err(stop) => return Ok(self.handle_stop(ticket, stop).await),
            Ok(Ok(files)) => RunningCommand::start(&self.command, ticket, &self.assignee, &files)
                .map(|running| (files, running)),
            Ok(Err(error)) => Err(error),
        };
        let (files, mut running) = match started {
            Ok(started) => started,
            Err(error) => {
                self.release(ticket).await;
                return Err(error);
            }
        };
        let stop = tokio::select! {
            ended = running.wait() => return self.finish(ticket, &ended?, &files).await,
            error = self.send_heartbeats(ticket) => StopReason::Lost(error),
            code = signals.next_exit_code() => StopReason::Signal(code),
        };
        running.stop().await;
        Ok(self.handle_stop(ticket, stop).await)
    }

    async fn handle_stop(&self, ticket: &Ticket, stop: StopReason) -> WorkOutcome {
        match stop {
            StopReason::Lost(error) => {
                out::eprint_line(&format!("skep: {} is lost, and its command was ended: {error}", ticket.id));
                WorkOutcome::Lost
            }
            StopReason::Signal(code) => {
                self.release(ticket).await;
                WorkOutcome::Stopped(code)
            }
        }
    }

    /// Writes the input files of the command.
    async fn prepare(&self, ticket: &Ticket) -> anyhow::Result<Files> {
        let files = Files::create_in(self.folder.path())?;
        let mut writer = files.begin_ticket(ticket).context("the ticket's file cannot be written")?;
        for id in &ticket.dependencies {
            if let Some(prerequisite) = self.prerequisite(*id).await? {
                writer.add(&prerequisite).context("the ticket's file cannot be written")?;
            }
        }
        writer.finish().context("the ticket's file cannot be written")?;
        Ok(files)
    }

    /// Loads a prerequisite; `None` if it was deleted after its completion.
    async fn prerequisite(&self, id: TicketId) -> skep_client::Result<Option<Ticket>> {
        let mut rest = MIN_RETRY_DELAY;
        loop {
            match self.client.ticket(id).await {
                Ok(found) => return Ok(Some(found.value)),
                Err(error) if is_transient(&error) => self.back_off(&error, &mut rest).await,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends heartbeats until the ticket is lost.
    async fn send_heartbeats(&self, ticket: &Ticket) -> Error {
        let mut times = interval(Duration::from_millis(self.lease_ms / HEARTBEATS_PER_LEASE));
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        times.tick().await;
        let request = Heartbeat {
            attempt: Some(ticket.attempt),
            assignee: Some(self.assignee.clone()),
            lease_ms: Some(self.lease_ms),
            progress: None,
        };
        loop {
            times.tick().await;
            match self.client.heartbeat_ticket(ticket.id, &request).await {
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                    return error;
                }
                // Other errors, such as an outage of the server, do not end the lease.
                Ok(_) | Err(_) => {}
            }
        }
    }

    async fn finish(
        &self,
        ticket: &Ticket,
        ended: &FinishedCommand,
        files: &Files,
    ) -> anyhow::Result<WorkOutcome> {
        let (status, result, worked) = match ended.outcome(files) {
            Outcome::Completed(result) => (TicketStatus::Completed, result, WorkOutcome::Completed),
            Outcome::Failed(result) => (TicketStatus::Failed, result, WorkOutcome::Failed),
            Outcome::NotStarted(why) => {
                self.release(ticket).await;
                bail!("`{}` could not be started ({why})", self.command.join(" "));
            }
        };
        let change = ChangeTicket { result: Patch::Value(result), ..self.change(ticket, status) };
        match self.send(ticket.id, &change).await {
            Ok(finished) if self.json => out::json(&finished.text)?,
            Ok(_) => self.report(&format!("{} {status}", ticket.id)),
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                out::eprint_line(&format!("skep: the result of {} was refused: {error}", ticket.id));
                return Ok(WorkOutcome::Lost);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(worked)
    }

    async fn release(&self, ticket: &Ticket) {
        let change = self.change(ticket, TicketStatus::Pending);
        match tokio::time::timeout(RELEASE_TIMEOUT, self.send(ticket.id, &change)).await {
            Ok(Ok(_)) => self.report(&format!("{} is released", ticket.id)),
            Ok(Err(error)) => {
                out::eprint_line(&format!("skep: {} could not be released: {error}", ticket.id))
            }
            Err(_) => {
                out::eprint_line(&format!(
                    "skep: {} could not be released in time; its lease expires",
                    ticket.id
                ));
            }
        }
    }

    fn change(&self, ticket: &Ticket, status: TicketStatus) -> ChangeTicket {
        ChangeTicket {
            status: Some(status),
            assignee: if status == TicketStatus::Pending {
                Patch::Absent
            } else {
                Patch::Value(self.assignee.clone())
            },
            attempt: Some(ticket.attempt),
            ..ChangeTicket::default()
        }
    }

    /// Sends a change until it is answered. Repeating it is harmless.
    async fn send(&self, id: TicketId, change: &ChangeTicket) -> skep_client::Result<Answered<Ticket>> {
        let mut rest = MIN_RETRY_DELAY;
        loop {
            match self.client.change_ticket(id, change).await {
                Err(error) if is_transient(&error) => self.back_off(&error, &mut rest).await,
                answered => return answered,
            }
        }
    }

    fn back_off(&self, error: &Error, rest: &mut Duration) -> impl Future<Output = ()> {
        if *rest == MIN_RETRY_DELAY {
            out::eprint_line(&format!("skep: {error}; trying again until the server answers"));
        }
        let now = *rest;
        *rest = (now * 2).min(MAX_RETRY_DELAY);
        sleep(now)
    }

    /// Prints a message unless --json is given.
    fn report(&self, text: &str) {
        if !self.json {
            out::eprint_line(text);
        }
    }
}
