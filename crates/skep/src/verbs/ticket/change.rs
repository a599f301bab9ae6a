//! `skep ticket claim`, `heartbeat`, `done`, `fail`, `release` and `retry`.

use std::{
    io::{self, Read},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;
use skep_api::{
    Label, Patch, TicketId,
    tickets::{
        ChangeTicket, ClaimTickets, Heartbeat as Beat, Object, Priorities, Priority, Ticket as Record,
        TicketStatus, TicketSummary,
    },
};
use skep_client::Answered;

use super::show::{printable, state, table};
use crate::{connection::Connection, output, verbs::boot::parse_milliseconds};

/// Claim a ticket, or the next ready tickets: by priority, then by age.
#[derive(Debug, Args)]
pub(super) struct Claim {
    /// Ticket [default: the next ready ones].
    id: Option<TicketId>,
    /// Assignee [default: the name of the key].
    #[arg(long, value_name = "NAME")]
    assignee: Option<String>,
    /// Duration of the lease, such as 10m or 1h; each heartbeat renews it [default: 1h].
    #[arg(long, value_name = "TIME")]
    lease: Option<String>,
    /// Maximum number of tickets, 1 to 100 [default: 1].
    #[arg(short = 'n', long, value_name = "NUMBER", conflicts_with = "id")]
    count: Option<u32>,
    /// Claim only tickets of this priority; may be given several times.
    #[arg(short, long, conflicts_with = "id")]
    priority: Vec<Priority>,
    /// Claim only tickets with this label; may be given several times, and then all labels are required.
    #[arg(short, long = "label", value_name = "LABEL", conflicts_with = "id")]
    labels: Vec<Label>,
    /// Time to wait if no ticket is ready, such as 30s; at most 60s [default: do not wait].
    #[arg(long, value_name = "TIME", conflicts_with = "id")]
    wait: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn claim(verb: Claim) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let lease_ms = verb.lease.as_deref().map(parse_milliseconds).transpose()?;
    if let Some(id) = verb.id {
        let assignee = verb.assignee.map_or(Patch::Absent, Patch::Value);
        let status = Some(TicketStatus::InProgress);
        let change = ChangeTicket { status, assignee, lease_ms, ..ChangeTicket::default() };
        return print_changed(&client.change_ticket(id, &change).await?, verb.connection.json);
    }
    let request = ClaimTickets {
        assignee: verb.assignee,
        count: verb.count,
        lease_ms,
        priority: (!verb.priority.is_empty()).then_some(Priorities::Any(verb.priority)),
        labels: (!verb.labels.is_empty()).then_some(verb.labels),
        wait_ms: verb.wait.as_deref().map(parse_milliseconds).transpose()?,
    };
    let claimed = output::with_spinner("waiting for work", client.claim_tickets(&request)).await?;
    if verb.connection.json {
        output::json(&claimed.text)?;
    } else if claimed.tickets.is_empty() {
        output::eprint_line("no ticket is ready");
    } else {
        let claimed: Vec<TicketSummary> = claimed.value.tickets.into_iter().map(Into::into).collect();
        table(&claimed)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The options that identify a ticket and its holder.
#[derive(Debug, Args)]
struct HeldTicket {
    /// Id of the ticket.
    id: TicketId,
    /// Attempt that you work on; the request is refused if it is not the current attempt.
    #[arg(long, value_name = "NUMBER")]
    attempt: Option<u32>,
    /// Assignee that you work as; the request is refused if another assignee holds the ticket.
    #[arg(long, value_name = "NAME")]
    assignee: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl HeldTicket {
    fn change(&self, status: TicketStatus) -> ChangeTicket {
        let assignee = self.assignee.clone().map_or(Patch::Absent, Patch::Value);
        ChangeTicket { status: Some(status), assignee, attempt: self.attempt, ..ChangeTicket::default() }
    }

    async fn send(&self, change: &ChangeTicket) -> anyhow::Result<ExitCode> {
        let client = self.connection.client()?;
        print_changed(&client.change_ticket(self.id, change).await?, self.connection.json)
    }
}

/// Renew the lease of a ticket that you hold. If the request is refused, you have lost the ticket: stop working.
#[derive(Debug, Args)]
pub(super) struct Heartbeat {
    /// Duration of the lease from now on, such as 10m [default: unchanged].
    #[arg(long, value_name = "TIME")]
    lease: Option<String>,
    /// Progress, shown in the ticket's record.
    #[arg(long, value_name = "TEXT")]
    progress: Option<String>,
    #[command(flatten)]
    held: HeldTicket,
}

pub(super) async fn heartbeat(verb: Heartbeat) -> anyhow::Result<ExitCode> {
    let HeldTicket { id, attempt, assignee, connection } = verb.held;
    let lease_ms = verb.lease.as_deref().map(parse_milliseconds).transpose()?;
    let request = Beat { attempt, assignee, lease_ms, progress: verb.progress };
    let beat = connection.client()?.heartbeat_ticket(id, &request).await?;
    if connection.json {
        output::json(&beat.text)?;
    } else {
        output::line(&format!("attempt {} has a lease until {:.0}", beat.attempt, beat.lease_expires_at))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Complete or fail a ticket that you hold.
#[derive(Debug, Args)]
pub(super) struct Finish {
    /// Result: a JSON object, or text, which becomes {"output": TEXT}; - reads it from standard input.
    #[arg(short, long, value_name = "RESULT")]
    result: Option<String>,
    #[command(flatten)]
    held: HeldTicket,
}

pub(super) async fn finish(verb: Finish, status: TicketStatus) -> anyhow::Result<ExitCode> {
    let result = verb.result.map(text_or_stdin).transpose()?.map(|text| parse_result(&text));
    let result = result.map_or(Patch::Absent, Patch::Value);
    let change = ChangeTicket { result, ..verb.held.change(status) };
    verb.held.send(&change).await
}

/// Release a ticket that is held; this does not count as a failed attempt.
#[derive(Debug, Args)]
pub(super) struct Release {
    /// Time during which the ticket cannot be claimed, such as 5m [default: claimable at once].
    #[arg(long, value_name = "TIME")]
    retry_after: Option<String>,
    #[command(flatten)]
    held: HeldTicket,
}

pub(super) async fn release(verb: Release) -> anyhow::Result<ExitCode> {
    let retry_after_ms = verb.retry_after.as_deref().map(parse_milliseconds).transpose()?;
    let change = ChangeTicket { retry_after_ms, ..verb.held.change(TicketStatus::Pending) };
    verb.held.send(&change).await
}

/// Make a failed ticket ready again.
#[derive(Debug, Args)]
pub(super) struct Retry {
    /// Id of the ticket.
    id: TicketId,
    /// Time during which the ticket cannot be claimed, such as 5m [default: claimable at once].
    #[arg(long, value_name = "TIME")]
    retry_after: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn retry(verb: Retry) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let found = client.ticket(verb.id).await?;
    if found.status != TicketStatus::Failed {
        let status = found.status;
        bail!(
            "{} is {status}: only failed tickets can be retried; `skep ticket release` releases a held one",
            found.id
        );
    }
    let change = ChangeTicket {
        status: Some(TicketStatus::Pending),
        // Refuses the change if the ticket was retried and claimed in the meantime.
        attempt: Some(found.attempt),
        retry_after_ms: verb.retry_after.as_deref().map(parse_milliseconds).transpose()?,
        ..ChangeTicket::default()
    };
    print_changed(&client.change_ticket(verb.id, &change).await?, verb.connection.json)
}

/// Prints a changed ticket.
pub(super) fn print_changed(ticket: &Answered<Record>, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        output::json(&ticket.text)?;
    } else {
        let attempt =
            if ticket.attempt > 0 { format!(", attempt {}", ticket.attempt) } else { String::new() };
        output::line(&format!("{} {}{attempt}: {}", ticket.id, state(ticket), printable(&ticket.title)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a result: a JSON object is kept, other text becomes `{"output": TEXT}`.
pub(super) fn parse_result(text: &str) -> Object {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => object,
        _ => Object::from_iter([("output".to_owned(), Value::from(text.trim_end_matches('\n')))]),
    }
}

pub(super) fn text_or_stdin(text: String) -> anyhow::Result<String> {
    if text != "-" {
        return Ok(text);
    }
    let mut read = String::new();
    io::stdin().read_to_string(&mut read).context("the input is not UTF-8 text or cannot be read")?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_an_object() {
        assert_eq!(Value::from(parse_result(r#"{"a": 1}"#)).to_string(), r#"{"a":1}"#);
        assert_eq!(Value::from(parse_result("[1]")).to_string(), r#"{"output":"[1]"}"#);
        assert_eq!(Value::from(parse_result("done\n")).to_string(), r#"{"output":"done"}"#);
        assert_eq!(Value::from(parse_result("")).to_string(), r#"{"output":""}"#);
    }
}
