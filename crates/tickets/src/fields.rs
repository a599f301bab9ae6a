//! The fields of a ticket that callers set: those of a new ticket, and edits of an existing one.

use std::ops::RangeInclusive;

use jiff::Timestamp;
use skep_api::{
    Label, TicketId,
    tickets::{ChangeTicket, CreateTicket, Object, Priority},
};

use crate::{
    Dependency, Error, State, Ticket,
    limits::MAX_DEPENDENCIES,
    request::{check_count, check_object, check_range, check_size, deduplicated, deduplicated_labels},
    transition::state_refusal,
};

const MAX_TITLE_CHARACTERS: usize = 500;
/// Of a description, and of metadata as JSON, in bytes.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Values of `max_attempts`.
const ATTEMPT_LIMITS: RangeInclusive<u32> = 1..=1_000;
const DEFAULT_ATTEMPTS: u32 = 5;
/// Values of `max_runtime_ms`, in milliseconds.
const RUNTIMES_MS: RangeInclusive<u64> = 5_000..=2_592_000_000;
const DEFAULT_RUNTIME_MS: u64 = 86_400_000;

/// A valid new ticket, provided that the tickets that it depends on exist.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTicket {
    pub title: String,
    pub description: Option<String>,
    pub priority: Priority,
    /// Without duplicates.
    pub dependencies: Vec<Dependency>,
    /// Without duplicates.
    pub labels: Vec<Label>,
    pub metadata: Option<Object>,
    pub max_attempts: u32,
    pub max_runtime_ms: u64,
    pub not_before: Option<Timestamp>,
}

impl NewTicket {
    /// Applies the defaults to a request.
    pub(crate) fn from_request(request: CreateTicket, needs: Vec<Dependency>) -> Self {
        Self {
            title: request.title,
            description: request.description,
            priority: request.priority.unwrap_or(Priority::Medium),
            dependencies: needs,
            labels: deduplicated(request.labels.unwrap_or_default()),
            metadata: request.metadata,
            max_attempts: request.max_attempts.unwrap_or(DEFAULT_ATTEMPTS),
            max_runtime_ms: request.max_runtime_ms.unwrap_or(DEFAULT_RUNTIME_MS),
            not_before: request.not_before.map(round_up_to_millisecond),
        }
    }
}

/// The changes of a PATCH request other than transitions. `None` keeps a field; the inner `None` removes its value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edits {
    pub title: Option<String>,
    pub description: Option<Option<String>>,
    pub priority: Option<Priority>,
    /// Replaces all dependencies; without duplicates.
    pub dependencies: Option<Vec<TicketId>>,
    /// Replaces all labels; without duplicates.
    pub labels: Option<Vec<Label>>,
    /// Replaces all metadata.
    pub metadata: Option<Option<Object>>,
    pub max_attempts: Option<u32>,
    pub max_runtime_ms: Option<u64>,
    pub not_before: Option<Option<Timestamp>>,
}

impl Edits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Checks a ticket to create, except its dependencies. `at` is the prefix of field names in error messages.
///
/// # Errors
/// The first invalid value.
pub(crate) fn check_new_ticket(request: &CreateTicket, at: &str) -> Result<(), Error> {
    check_title(&request.title, at)?;
    check_text(request.description.as_deref(), &format!("{at}description"))?;
    check_object(request.metadata.as_ref(), &format!("{at}metadata"), MAX_TEXT_BYTES)?;
    deduplicated_labels(request.labels.as_deref().unwrap_or_default(), &format!("{at}labels"))?;
    check_range(request.max_attempts, &format!("{at}max_attempts"), &ATTEMPT_LIMITS)?;
    check_range(request.max_runtime_ms, &format!("{at}max_runtime_ms"), &RUNTIMES_MS)
}

/// Checks a ticket to create. Whether its dependencies exist is checked later.
///
/// # Errors
/// The first invalid value.
pub fn new_ticket(request: CreateTicket) -> Result<NewTicket, Error> {
    check_new_ticket(&request, "")?;
    let needs = deduplicated_dependencies(request.dependencies.as_deref().unwrap_or_default())?;
    Ok(NewTicket::from_request(request, needs.into_iter().map(Dependency::Ticket).collect()))
}

/// The changes of a PATCH request other than transitions.
///
/// # Errors
/// The first invalid value.
pub fn parse_edits(request: &ChangeTicket) -> Result<Edits, Error> {
    request.title.as_deref().map(|text| check_title(text, "")).transpose()?;
    check_text(request.description.value().map(String::as_str), "description")?;
    check_object(request.metadata.value(), "metadata", MAX_TEXT_BYTES)?;
    check_range(request.max_attempts, "max_attempts", &ATTEMPT_LIMITS)?;
    check_range(request.max_runtime_ms, "max_runtime_ms", &RUNTIMES_MS)?;
    Ok(Edits {
        title: request.title.clone(),
        description: request.description.clone().into_nested_option(),
        priority: request.priority,
        dependencies: request.dependencies.as_deref().map(deduplicated_dependencies).transpose()?,
        labels: request.labels.as_deref().map(|given| deduplicated_labels(given, "labels")).transpose()?,
        metadata: request.metadata.clone().into_nested_option(),
        max_attempts: request.max_attempts,
        max_runtime_ms: request.max_runtime_ms,
        not_before: request.not_before.clone().into_nested_option().map(|at| at.map(round_up_to_millisecond)),
    })
}

/// Checks that the status of the ticket permits the changes.
///
/// # Errors
/// The first change that is not permitted.
pub fn check_edits(ticket: &Ticket, edits: &Edits) -> Result<(), Error> {
    let others = Edits { metadata: None, labels: None, ..edits.clone() };
    if matches!(ticket.state, State::Completed(_)) && !others.is_empty() {
        return Err(state_refusal(
            ticket,
            "change, but for its `metadata` and `labels`",
            "create another one",
        ));
    }
    if edits.dependencies.is_some() && !matches!(ticket.state, State::Pending { .. }) {
        return Err(state_refusal(ticket, "get other `dependencies`", "change them while it is pending"));
    }
    Ok(())
}

/// Rounds a time up to the millisecond precision of the store, so that it is never earlier than requested.
fn round_up_to_millisecond(at: Timestamp) -> Timestamp {
    let whole = Timestamp::from_millisecond(at.as_millisecond());
    let beyond = i64::from(whole.is_ok_and(|whole| whole < at));
    Timestamp::from_millisecond(at.as_millisecond() + beyond).unwrap_or(at)
}

fn deduplicated_dependencies(given: &[TicketId]) -> Result<Vec<TicketId>, Error> {
    let once = deduplicated(given.iter().copied());
    check_count(once.len(), "dependencies", MAX_DEPENDENCIES)?;
    Ok(once)
}

fn check_title(title: &str, at: &str) -> Result<(), Error> {
    let characters = title.chars().count();
    if (1..=MAX_TITLE_CHARACTERS).contains(&characters) {
        return Ok(());
    }
    Err(Error::Value(format!(
        "`{at}title` has {characters} characters; it must have 1 to {MAX_TITLE_CHARACTERS}"
    )))
}

fn check_text(text: Option<&str>, field: &str) -> Result<(), Error> {
    check_size(text.map_or(0, str::len), field, MAX_TEXT_BYTES)
}
