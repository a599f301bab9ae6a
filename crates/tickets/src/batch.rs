//! Batches of tickets, which can depend on each other by names within the batch.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use skep_api::{
    Label, TicketId,
    tickets::{BatchTicket, CreateTicket, CreateTickets, Object, Priority},
};

use crate::{
    Refusal, cycle_among,
    limits::{DEFAULT_ATTEMPTS, DEFAULT_RUNTIME, LONGEST_REF, MOST_DEPENDENCIES, MOST_TICKETS},
    request::{check_count, check_new, each_once, whole_millisecond},
};

/// The prefix of a dependency on a ticket of the same batch.
const SIBLING: &str = "ref:";

/// A dependency of a new ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needed {
    /// An existing ticket, whose existence is checked later.
    Ticket(TicketId),
    /// A ticket of the same batch, by its index.
    Sibling(usize),
}

/// A valid new ticket, provided that the tickets that it depends on exist.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTicket {
    pub title: String,
    pub description: Option<String>,
    pub priority: Priority,
    /// Without duplicates.
    pub needs: Vec<Needed>,
    /// Without duplicates.
    pub labels: Vec<Label>,
    pub metadata: Option<Object>,
    pub max_attempts: u32,
    pub max_runtime: Duration,
    pub not_before: Option<Timestamp>,
}

impl NewTicket {
    /// Applies the defaults to a request.
    pub(crate) fn of(request: CreateTicket, needs: Vec<Needed>) -> Self {
        Self {
            title: request.title,
            description: request.description,
            priority: request.priority.unwrap_or(Priority::Medium),
            needs,
            labels: each_once(request.labels.unwrap_or_default()),
            metadata: request.metadata,
            max_attempts: request.max_attempts.unwrap_or(DEFAULT_ATTEMPTS),
            max_runtime: request.max_runtime_ms.map_or(DEFAULT_RUNTIME, Duration::from_millis),
            not_before: request.not_before.map(whole_millisecond),
        }
    }
}

/// Checks a batch, and returns its tickets with their names.
///
/// # Errors
/// The first invalid value, or a cycle.
pub fn batch(request: CreateTickets) -> Result<Vec<(Option<String>, NewTicket)>, Refusal> {
    let tickets = request.tickets;
    if tickets.is_empty() {
        return Err(Refusal::Value("`tickets` is empty; give 1 to 1000 tickets".to_owned()));
    }
    check_count(tickets.len(), "tickets", MOST_TICKETS)?;
    let places = names(&tickets)?;
    let mut made = Vec::with_capacity(tickets.len());
    for (place, ticket) in tickets.into_iter().enumerate() {
        let needs = needs(&ticket, place, &places)?;
        let (name, request) = split(ticket);
        check_new(&request, &format!("tickets[{place}]."))?;
        made.push((name, NewTicket::of(request, needs)));
    }
    check_cycle(&made)?;
    Ok(made)
}

/// Maps each name to the index of its ticket.
fn names(tickets: &[BatchTicket]) -> Result<HashMap<String, usize>, Refusal> {
    let mut places = HashMap::new();
    for (place, ticket) in tickets.iter().enumerate() {
        let Some(name) = &ticket.reference else { continue };
        let characters = name.chars().count();
        if !(1..=LONGEST_REF).contains(&characters) {
            return Err(Refusal::Value(format!(
                "`tickets[{place}].ref` has {characters} characters; it must have 1 to {LONGEST_REF}"
            )));
        }
        if let Some(first) = places.insert(name.clone(), place) {
            return Err(Refusal::Value(format!(
                "`tickets[{first}].ref` and `tickets[{place}].ref` are both `{name}`; give each its own"
            )));
        }
    }
    Ok(places)
}

fn needs(
    ticket: &BatchTicket,
    place: usize,
    places: &HashMap<String, usize>,
) -> Result<Vec<Needed>, Refusal> {
    let mut needs = Vec::new();
    for (at, text) in ticket.dependencies.iter().flatten().enumerate() {
        let field = || format!("tickets[{place}].dependencies[{at}]");
        let need = match text.strip_prefix(SIBLING) {
            Some(name) => match places.get(name) {
                Some(sibling) => Needed::Sibling(*sibling),
                None => return Err(Refusal::UnknownRef { field: field(), reference: name.to_owned() }),
            },
            None => Needed::Ticket(text.parse().map_err(|_| {
                Refusal::Value(format!("`{}` is `{text}`; it must be `ref:NAME` or a ticket's id", field()))
            })?),
        };
        needs.push(need);
    }
    let needs = each_once(needs);
    check_count(needs.len(), &format!("tickets[{place}].dependencies"), MOST_DEPENDENCIES)?;
    Ok(needs)
}

fn split(ticket: BatchTicket) -> (Option<String>, CreateTicket) {
    let request = CreateTicket {
        title: ticket.title,
        description: ticket.description,
        priority: ticket.priority,
        dependencies: None,
        labels: ticket.labels,
        metadata: ticket.metadata,
        max_attempts: ticket.max_attempts,
        max_runtime_ms: ticket.max_runtime_ms,
        not_before: ticket.not_before,
    };
    (ticket.reference, request)
}

fn check_cycle(tickets: &[(Option<String>, NewTicket)]) -> Result<(), Refusal> {
    let siblings = |needs: &[Needed]| {
        needs
            .iter()
            .filter_map(|need| if let Needed::Sibling(place) = need { Some(*place) } else { None })
            .collect()
    };
    let graph: Vec<Vec<usize>> = tickets.iter().map(|(_, ticket)| siblings(&ticket.needs)).collect();
    let Some(way) = cycle_among(&graph) else { return Ok(()) };
    let name = |place: usize| match tickets.get(place) {
        Some((Some(name), _)) => format!("{SIBLING}{name}"),
        _ => format!("tickets[{place}]"),
    };
    Err(Refusal::Cycle { path: way.into_iter().map(name).collect() })
}

#[cfg(test)]
mod tests {
    use skep_api::ErrorCode;

    use super::*;

    fn read(text: &str) -> Result<Vec<(Option<String>, NewTicket)>, Refusal> {
        batch(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn names_point_forward_and_back() {
        let made = read(
            r#"{"tickets": [
                {"ref": "build", "title": "b", "dependencies": ["ref:plan", "ref:plan", "tkt_01jv0000000000000000000000"]},
                {"ref": "plan", "title": "p"}
            ]}"#,
        );
        let made = made.unwrap();
        let known = Needed::Ticket("tkt_01jv0000000000000000000000".parse().unwrap());
        assert_eq!(made[0].1.needs, [Needed::Sibling(1), known]);
        assert_eq!((made[1].0.as_deref(), made[1].1.needs.len()), (Some("plan"), 0));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, code, words) in [
            (r#"{"tickets": []}"#, ErrorCode::InvalidValue, "`tickets` is empty"),
            (r#"{"tickets": [{"title": ""}]}"#, ErrorCode::InvalidValue, "`tickets[0].title`"),
            (
                r#"{"tickets": [{"ref": "a", "title": "a"}, {"ref": "a", "title": "b"}]}"#,
                ErrorCode::InvalidValue,
                "`tickets[1].ref` are both `a`",
            ),
            (
                r#"{"tickets": [{"title": "a", "dependencies": ["ref:b"]}]}"#,
                ErrorCode::UnknownDependency,
                "`tickets[0].dependencies[0]` names `ref:b`",
            ),
            (
                r#"{"tickets": [{"title": "a", "dependencies": ["b"]}]}"#,
                ErrorCode::InvalidValue,
                "`ref:NAME`",
            ),
            (
                r#"{"tickets": [
                    {"ref": "a", "title": "a", "dependencies": ["ref:b"]},
                    {"ref": "b", "title": "b", "dependencies": ["ref:a"]}
                ]}"#,
                ErrorCode::Cycle,
                "ref:a → ref:b → ref:a",
            ),
        ] {
            let refusal = read(text).unwrap_err();
            assert_eq!(refusal.code(), code, "{text}: {refusal}");
            assert!(refusal.to_string().contains(words), "{text}: {refusal}");
        }
    }
}
