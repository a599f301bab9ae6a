//! Validation of requests, without knowledge of the ticket, and their conversion to commands. The fields of a ticket are
//! checked in `fields`.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use skep_api::{
    Label, Patch,
    tickets::{ChangeTicket, ClaimTickets, Heartbeat, Object, Priorities, Priority, TicketStatus},
};

use crate::{
    Assignee, Claim, ClaimReady, Command, Error, FinishRequest, Release, Resolution,
    limits::{
        CLAIM_COUNTS, LEASES_MS, MAX_ASSIGNEE_CHARACTERS, MAX_LABELS, MAX_PROGRESS_CHARACTERS,
        MAX_RESULT_BYTES, RETRY_DELAYS_MS, WAITS_MS,
    },
};

/// The transition that a PATCH request asks for; `None` if it has no field for one.
///
/// # Errors
/// The first invalid value, or fields that contradict each other.
pub fn parse_transition(request: &ChangeTicket, key_name: &str) -> Result<Option<Command>, Error> {
    let ChangeTicket { status, assignee, result, attempt, .. } = request;
    check_name(assignee.value().map(String::as_str), "assignee")?;
    check_object(result.value(), "result", MAX_RESULT_BYTES)?;
    check_range(request.lease_ms, "lease_ms", &LEASES_MS)?;
    check_range(request.retry_after_ms, "retry_after_ms", &RETRY_DELAYS_MS)?;
    let command = match (status, assignee) {
        (None, Patch::Absent) if !result.is_absent() => Some(Command::ResultOnly(result.clone())),
        (None, Patch::Absent) => None,
        (None, Patch::Null) => Some(release(request, false)),
        (Some(TicketStatus::Pending), _) => Some(release(request, true)),
        (Some(status), Patch::Null) => {
            return Err(Error::Value(format!(
                "`assignee` is null, which gives the ticket back, and `status` is {status}; leave one of them out"
            )));
        }
        (None | Some(TicketStatus::InProgress), _) => {
            Some(Command::Claim(claim(assignee.value(), key_name, request.attempt, request.lease_ms)))
        }
        (Some(TicketStatus::Completed), _) => Some(finish_request(request, Resolution::Completed, key_name)),
        (Some(TicketStatus::Failed), _) => Some(finish_request(request, Resolution::Failed, key_name)),
    };
    check_combination(request, command.as_ref())?;
    if command.is_none() && attempt.is_some() {
        return Err(requires("attempt", "`status`"));
    }
    Ok(command)
}

/// Refuses fields that have no meaning without others, instead of ignoring them.
fn check_combination(request: &ChangeTicket, command: Option<&Command>) -> Result<(), Error> {
    if request.lease_ms.is_some() && !matches!(command, Some(Command::Claim(_))) {
        return Err(requires("lease_ms", "`status` `in_progress`"));
    }
    if request.retry_after_ms.is_some() && !matches!(command, Some(Command::Release(_))) {
        return Err(requires("retry_after_ms", "`status` `pending`"));
    }
    let takes_result = matches!(command, None | Some(Command::Finish(_) | Command::ResultOnly(_)));
    if !request.result.is_absent() && !takes_result {
        return Err(requires("result", "`status` `completed` or `failed`"));
    }
    let moves = command.is_some();
    for (field, given) in
        [("dependencies", request.dependencies.is_some()), ("not_before", !request.not_before.is_absent())]
    {
        if moves && given {
            return Err(Error::Value(format!(
                "`{field}` and a change of `status` or `assignee` cannot be in one request; send one after the other"
            )));
        }
    }
    Ok(())
}

fn requires(field: &str, with: &str) -> Error {
    Error::Value(format!("`{field}` is valid only with {with}; send both, or leave it out"))
}

fn release(request: &ChangeTicket, by_status: bool) -> Command {
    Command::Release(Release {
        attempt: request.attempt,
        assignee: request.assignee.value().cloned(),
        retry_after: request.retry_after_ms.map(Duration::from_millis),
        by_status,
    })
}

fn claim(named: Option<&String>, key_name: &str, attempt: Option<u32>, lease_ms: Option<u64>) -> Claim {
    let lease = lease_ms.map(Duration::from_millis);
    Claim { assignee: assignee(named, key_name), vm: None, attempt, lease }
}

fn finish_request(request: &ChangeTicket, resolution: Resolution, key_name: &str) -> Command {
    Command::Finish(FinishRequest {
        resolution,
        result: request.result.clone(),
        attempt: request.attempt,
        assignee: assignee(request.assignee.value(), key_name),
    })
}

fn assignee(named: Option<&String>, key_name: &str) -> Assignee {
    named.map_or_else(|| Assignee::KeyName(key_name.to_owned()), |name| Assignee::Named(name.clone()))
}

/// Checks a claim of ready tickets. Its `wait_ms` is checked, but is not part of the result.
///
/// # Errors
/// The first invalid value.
pub fn parse_claim(request: &ClaimTickets, key_name: &str) -> Result<ClaimReady, Error> {
    check_name(request.assignee.as_deref(), "assignee")?;
    check_range(request.count, "count", &CLAIM_COUNTS)?;
    check_range(request.lease_ms, "lease_ms", &LEASES_MS)?;
    check_range(request.wait_ms, "wait_ms", &WAITS_MS)?;
    let wanted: BTreeSet<Priority> = match &request.priority {
        None => BTreeSet::new(),
        Some(Priorities::One(one)) => BTreeSet::from([*one]),
        Some(Priorities::Any(any)) if any.is_empty() => {
            let message = "`priority` is an empty list: nothing can be claimed by it; leave it out";
            return Err(Error::Value(message.to_owned()));
        }
        Some(Priorities::Any(any)) => any.iter().copied().collect(),
    };
    Ok(ClaimReady {
        each: claim(request.assignee.as_ref(), key_name, None, request.lease_ms),
        count: request.count.unwrap_or(1),
        priorities: wanted.into_iter().collect(),
        labels: deduplicated_labels(request.labels.as_deref().unwrap_or_default(), "labels")?,
    })
}

/// Checks a heartbeat.
///
/// # Errors
/// The first invalid value.
pub fn check_heartbeat(request: &Heartbeat) -> Result<(), Error> {
    check_name(request.assignee.as_deref(), "assignee")?;
    check_range(request.lease_ms, "lease_ms", &LEASES_MS)?;
    let characters = request.progress.as_deref().unwrap_or_default().chars().count();
    if characters > MAX_PROGRESS_CHARACTERS {
        return Err(Error::Value(format!(
            "`progress` has {characters} characters; keep it to {MAX_PROGRESS_CHARACTERS}"
        )));
    }
    Ok(())
}

/// Removes duplicates, keeping the order.
///
/// # Errors
/// There are more than [`MAX_LABELS`].
pub fn deduplicated_labels(given: &[Label], field: &str) -> Result<Vec<Label>, Error> {
    let once = deduplicated(given.iter().cloned());
    check_count(once.len(), field, MAX_LABELS)?;
    Ok(once)
}

/// Removes duplicates, keeping the first of each.
pub(crate) fn deduplicated<T: Clone + Ord>(given: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    given.into_iter().filter(|one| seen.insert(one.clone())).collect()
}

pub(crate) fn check_count(count: usize, field: &str, limit: usize) -> Result<(), Error> {
    if count > limit {
        return Err(Error::Value(format!("`{field}` has {count} entries; keep it to {limit}")));
    }
    Ok(())
}

fn check_name(name: Option<&str>, field: &str) -> Result<(), Error> {
    let Some(name) = name else { return Ok(()) };
    let characters = name.chars().count();
    if !(1..=MAX_ASSIGNEE_CHARACTERS).contains(&characters) {
        return Err(Error::Value(format!(
            "`{field}` has {characters} characters; it must have 1 to {MAX_ASSIGNEE_CHARACTERS}"
        )));
    }
    Ok(())
}

pub(crate) fn check_object(object: Option<&Object>, field: &str, limit: usize) -> Result<(), Error> {
    let size = object.map_or(Ok(0), |object| serde_json::to_vec(object).map(|text| text.len()));
    check_size(size.unwrap_or(usize::MAX), field, limit)
}

pub(crate) fn check_size(size: usize, field: &str, limit: usize) -> Result<(), Error> {
    if size > limit {
        return Err(Error::TooLarge { field: field.to_owned(), size, limit });
    }
    Ok(())
}

pub(crate) fn check_range<T: Copy + PartialOrd + std::fmt::Display>(
    number: Option<T>,
    field: &str,
    range: &RangeInclusive<T>,
) -> Result<(), Error> {
    match number {
        Some(number) if !range.contains(&number) => Err(Error::Value(format!(
            "`{field}` is {number}; it must be a whole number from {} to {}",
            range.start(),
            range.end()
        ))),
        _ => Ok(()),
    }
}
