//! Batches of tickets, which can depend on each other by names within the batch.

use std::collections::HashMap;

use skep_api::{
    TicketId,
    tickets::{BatchTicket, CreateTickets},
};

use crate::{
    Error, NewTicket,
    cycle::cycle_among,
    fields::check_new_ticket,
    limits::{MAX_BATCH_TICKETS, MAX_DEPENDENCIES, MAX_REF_CHARACTERS},
    request::{check_count, deduplicated},
};

/// The prefix of a dependency on a ticket of the same batch.
const SIBLING_PREFIX: &str = "ref:";

/// A dependency of a new ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dependency {
    /// An existing ticket, whose existence is checked later.
    Ticket(TicketId),
    /// A ticket of the same batch, by its index.
    Sibling(usize),
}

/// Checks a batch, and returns its tickets with their names.
///
/// # Errors
/// The first invalid value, or a cycle.
pub fn check_batch(request: CreateTickets) -> Result<Vec<(Option<String>, NewTicket)>, Error> {
    let tickets = request.tickets;
    if tickets.is_empty() {
        return Err(Error::Value("`tickets` is empty; give 1 to 1000 tickets".to_owned()));
    }
    check_count(tickets.len(), "tickets", MAX_BATCH_TICKETS)?;
    let places = indices_by_name(&tickets)?;
    let mut made = Vec::with_capacity(tickets.len());
    for (place, ticket) in tickets.into_iter().enumerate() {
        let needs = parse_dependencies(&ticket, place, &places)?;
        let name = ticket.reference.clone();
        let request = ticket.into_creation();
        check_new_ticket(&request, &format!("tickets[{place}]."))?;
        made.push((name, NewTicket::from_request(request, needs)));
    }
    check_cycle(&made)?;
    Ok(made)
}

/// Maps each name to the index of its ticket.
fn indices_by_name(tickets: &[BatchTicket]) -> Result<HashMap<String, usize>, Error> {
    let mut places = HashMap::new();
    for (place, ticket) in tickets.iter().enumerate() {
        let Some(name) = &ticket.reference else { continue };
        let characters = name.chars().count();
        if !(1..=MAX_REF_CHARACTERS).contains(&characters) {
            return Err(Error::Value(format!(
                "`tickets[{place}].ref` has {characters} characters; it must have 1 to {MAX_REF_CHARACTERS}"
            )));
        }
        if let Some(first) = places.insert(name.clone(), place) {
            return Err(Error::Value(format!(
                "`tickets[{first}].ref` and `tickets[{place}].ref` are both `{name}`; give each its own"
            )));
        }
    }
    Ok(places)
}

fn parse_dependencies(
    ticket: &BatchTicket,
    place: usize,
    places: &HashMap<String, usize>,
) -> Result<Vec<Dependency>, Error> {
    let mut needs = Vec::new();
    for (at, text) in ticket.dependencies.iter().flatten().enumerate() {
        let field = || format!("tickets[{place}].dependencies[{at}]");
        let need = match text.strip_prefix(SIBLING_PREFIX) {
            Some(name) => match places.get(name) {
                Some(sibling) => Dependency::Sibling(*sibling),
                None => return Err(Error::UnknownRef { field: field(), reference: name.to_owned() }),
            },
            None => Dependency::Ticket(text.parse().map_err(|_| {
                Error::Value(format!("`{}` is `{text}`; it must be `ref:NAME` or a ticket's id", field()))
            })?),
        };
        needs.push(need);
    }
    let needs = deduplicated(needs);
    check_count(needs.len(), &format!("tickets[{place}].dependencies"), MAX_DEPENDENCIES)?;
    Ok(needs)
}

fn check_cycle(tickets: &[(Option<String>, NewTicket)]) -> Result<(), Error> {
    let siblings = |needs: &[Dependency]| {
        needs
            .iter()
            .filter_map(|need| if let Dependency::Sibling(place) = need { Some(*place) } else { None })
            .collect()
    };
    let graph: Vec<Vec<usize>> = tickets.iter().map(|(_, ticket)| siblings(&ticket.dependencies)).collect();
    let Some(way) = cycle_among(&graph) else { return Ok(()) };
    let name = |place: usize| match tickets.get(place) {
        Some((Some(name), _)) => format!("{SIBLING_PREFIX}{name}"),
        _ => format!("tickets[{place}]"),
    };
    Err(Error::Cycle { path: way.into_iter().map(name).collect() })
}

#[cfg(test)]
mod tests {
    use skep_api::ErrorCode;

    use super::*;

    fn read(text: &str) -> Result<Vec<(Option<String>, NewTicket)>, Error> {
        check_batch(serde_json::from_str(text).unwrap())
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
        let known = Dependency::Ticket("tkt_01jv0000000000000000000000".parse().unwrap());
        assert_eq!(made[0].1.dependencies, [Dependency::Sibling(1), known]);
        assert_eq!((made[1].0.as_deref(), made[1].1.dependencies.len()), (Some("plan"), 0));
    }

    #[test]
    fn errors_name_the_invalid_field() {
        for (text, code, message) in [
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
            assert!(refusal.to_string().contains(message), "{text}: {refusal}");
        }
    }
}
