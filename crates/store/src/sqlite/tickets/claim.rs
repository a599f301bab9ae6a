//! Claims of ready tickets.

use rusqlite::{Connection, params};
use skep_api::{
    AccountId, Label, TicketId,
    tickets::{ClaimedTickets, Priority, TicketStatus},
};
use skep_tickets::{ClaimReady, Command, Decision, decide};

use super::{
    super::{
        columns::{invalid_column, query_all},
        error::SqliteError,
    },
    WithSignals,
    apply::{Change, apply},
    fields::{rank, record},
    idempotency,
    intersection::{Intersection, Term},
    list::{IndexRange, READY},
    row::{of_account, size_bytes},
};
use crate::{Answered, ClaimTickets, Error, TicketSignal};

/// Maximum size of the records in an answer, in bytes. A claim ends with the ticket that reaches it.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Selects and claims ready tickets in one transaction, most urgent first, then oldest first.
pub(in super::super) fn claim(
    connection: &Connection,
    command: &ClaimTickets,
) -> Result<WithSignals<Answered<ClaimedTickets>>, SqliteError> {
    let mut signals = Vec::new();
    // An answer without tickets is not stored, so that a retry may find some.
    let answered = idempotency::run_once(
        connection,
        &command.call,
        command.idempotency.as_ref(),
        |found: &ClaimedTickets| !found.tickets.is_empty(),
        || claim_ready(connection, command, &mut signals),
    )?;
    Ok((answered, signals))
}

fn claim_ready(
    connection: &Connection,
    command: &ClaimTickets,
    signals: &mut Vec<TicketSignal>,
) -> Result<ClaimedTickets, SqliteError> {
    let order = Command::Claim(command.claim.each.clone());
    let (mut tickets, mut bytes) = (Vec::new(), 0);
    for id in ready(connection, command.call.account, &command.claim)? {
        let before = of_account(connection, command.call.account, id)?;
        let Decision::Changed(steps) =
            decide(&before.ticket, &order, command.call.at).map_err(Error::from)?
        else {
            continue;
        };
        let after = apply(connection, &command.call, Change::of(&before, steps), signals)?;
        let ticket = record(connection, after, command.call.at)?;
        bytes += size_bytes(&ticket);
        tickets.push(ticket);
        // The remaining tickets stay ready for the next claim.
        if bytes >= MAX_ANSWER_BYTES {
            break;
        }
    }
    Ok(ClaimedTickets { tickets })
}

fn ready(
    connection: &Connection,
    account: AccountId,
    claim: &ClaimReady,
) -> Result<Vec<TicketId>, SqliteError> {
    let account = account.to_string();
    let wanted = |priority: &&Priority| claim.priorities.is_empty() || claim.priorities.contains(priority);
    let mut ids = Vec::new();
    for priority in Priority::ALL.iter().filter(wanted) {
        let left = i64::from(claim.count) - i64::try_from(ids.len()).unwrap_or(i64::MAX);
        if left <= 0 {
            break;
        }
        if !claim.labels.is_empty() {
            ids.extend(labelled(connection, &account, &claim.labels, rank(*priority), left)?);
            continue;
        }
        let sql =
            "SELECT id FROM tickets WHERE account = ?1 AND stage = 1 AND priority = ?2 ORDER BY id LIMIT ?3";
        ids.extend(query_all(connection, sql, params![account, rank(*priority), left], |row| {
            row.parse::<TicketId>("id")
        })?);
    }
    Ok(ids)
}

/// Returns ready tickets that have all of these labels.
fn labelled(
    connection: &Connection,
    account: &str,
    labels: &[Label],
    priority: i64,
    limit: i64,
) -> Result<Vec<TicketId>, SqliteError> {
    let mut common = Intersection {
        connection,
        account: account.to_owned(),
        terms: labels.iter().map(Term::Label).collect(),
        range: IndexRange { status: TicketStatus::Pending, stage: READY, priority },
        by_change: false,
        all_stages: false,
        after: (0, String::new()),
    };
    let mut ids = Vec::new();
    for _ in 0..limit {
        let Some((_, id)) = common.next()? else { break };
        ids.push(id.parse().map_err(|error| invalid_column("ticket", error))?);
    }
    Ok(ids)
}
