//! Claims of ready tickets.

use rusqlite::{Connection, params};
use skep_api::{
    TicketId,
    tickets::{ClaimedTickets, Priority, TicketStatus},
};
use skep_tickets::{Assignee, Claim, Command, Decision, decide};

use super::{
    super::{
        columns::{all, broken},
        fault::Fault,
    },
    Told,
    apply::{Change, apply},
    intersection::{Intersection, Word},
    list::{READY, Stretch},
    once,
    row::{cost, of_account, rank, record},
};
use crate::{Answered, ClaimTickets, Error, TicketNews};

/// Maximum size of the records in an answer, in bytes. A claim ends with the ticket that reaches it.
const MOST_BYTES: usize = 8 << 20;

/// Selects and claims ready tickets in one transaction, most urgent first, then oldest first.
pub(in super::super) fn claim(
    connection: &Connection,
    command: &ClaimTickets,
) -> Result<Told<Answered<ClaimedTickets>>, Fault> {
    let mut news = Vec::new();
    // An answer without tickets is not stored, so that a retry may find some.
    let answered = once::answer(
        connection,
        &command.call,
        command.once.as_ref(),
        |found: &ClaimedTickets| !found.tickets.is_empty(),
        || pick(connection, command, &mut news),
    )?;
    Ok((answered, news))
}

fn pick(
    connection: &Connection,
    command: &ClaimTickets,
    news: &mut Vec<TicketNews>,
) -> Result<ClaimedTickets, Fault> {
    let order = Command::Claim(Claim {
        assignee: Assignee::Named(command.assignee.clone()),
        vm: None,
        attempt: None,
        lease: command.lease,
    });
    let (mut tickets, mut bytes) = (Vec::new(), 0);
    for id in ready(connection, command)? {
        let before = of_account(connection, command.call.account, id)?;
        let Decision::Changed(steps) =
            decide(&before.ticket, &order, command.call.at).map_err(Error::from)?
        else {
            continue;
        };
        let after = apply(connection, &command.call, Change::of(&before, steps), news)?;
        let ticket = record(connection, after, command.call.at)?;
        bytes += cost(&ticket);
        tickets.push(ticket);
        // The remaining tickets stay ready for the next claim.
        if bytes >= MOST_BYTES {
            break;
        }
    }
    Ok(ClaimedTickets { tickets })
}

fn ready(connection: &Connection, command: &ClaimTickets) -> Result<Vec<TicketId>, Fault> {
    let wanted =
        |priority: &&Priority| command.priorities.is_empty() || command.priorities.contains(priority);
    let mut ids = Vec::new();
    for priority in Priority::ALL.iter().filter(wanted) {
        let left = i64::from(command.count) - i64::try_from(ids.len()).unwrap_or(i64::MAX);
        if left <= 0 {
            break;
        }
        if !command.labels.is_empty() {
            ids.extend(labelled(connection, command, rank(*priority), left)?);
            continue;
        }
        let sql =
            "SELECT id FROM tickets WHERE account = ?1 AND stage = 1 AND priority = ?2 ORDER BY id LIMIT ?3";
        let account = command.call.account.to_string();
        ids.extend(all(connection, sql, params![account, rank(*priority), left], |row| {
            row.word::<TicketId>("id")
        })?);
    }
    Ok(ids)
}

/// Returns ready tickets that have all labels of the claim.
fn labelled(
    connection: &Connection,
    command: &ClaimTickets,
    priority: i64,
    limit: i64,
) -> Result<Vec<TicketId>, Fault> {
    let mut common = Intersection {
        connection,
        account: command.call.account.to_string(),
        words: command.labels.iter().map(Word::Label).collect(),
        stretch: Stretch { status: TicketStatus::Pending, stage: READY, priority },
        by_change: false,
        whole: false,
        after: (0, String::new()),
    };
    let mut ids = Vec::new();
    for _ in 0..limit {
        let Some((_, id)) = common.next()? else { break };
        ids.push(id.parse().map_err(|error| broken("ticket", error))?);
    }
    Ok(ids)
}
