//! Lists tickets, with filters, orders, and cursors that are bound to them.

use std::{fmt::Display, str::FromStr};

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use skep_api::{
    AccountId, ErrorCode, Failure, Label, TicketId, budget::MAX_ANSWER_BYTES, tickets::TicketList,
};
use skep_store::{ListTickets, TicketFilter, TicketPosition, TicketSort};
use utoipa::{IntoParams, ToSchema};

use super::TicketsState;
use crate::{
    extract::{Caller, Query, TicketsRead},
    json::Json,
    routes::Answer,
};

/// Entries on a page without `limit`.
const DEFAULT_PAGE: u32 = 500;
const MAX_PAGE: u32 = 1_000;

/// The order of a list.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
enum Sort {
    /// Oldest first.
    #[serde(rename = "created")]
    Created,
    /// The order of claims: most urgent first, then oldest first.
    #[serde(rename = "priority")]
    Priority,
    /// The latest change first.
    #[serde(rename = "-updated_at")]
    Updated,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TicketsQuery {
    /// Any of these states, comma-separated: `pending`, `in_progress`, `completed`, `failed`.
    #[param(
        pattern = "^(pending|in_progress|completed|failed)(,(pending|in_progress|completed|failed))*$",
        example = "pending,in_progress"
    )]
    status: Option<String>,
    /// Any of these priorities, comma-separated: `critical`, `high`, `medium`, `low`.
    #[param(
        pattern = "^(critical|high|medium|low)(,(critical|high|medium|low))*$",
        example = "critical,high"
    )]
    priority: Option<String>,
    /// The assignee who holds or finished them.
    #[param(example = "agent-7")]
    assignee: Option<String>,
    /// All of these labels, comma-separated.
    #[param(
        pattern = "^[a-z0-9][a-z0-9._/-]{0,62}(,[a-z0-9][a-z0-9._/-]{0,62})*$",
        example = "plan/port,gpu"
    )]
    label: Option<String>,
    /// Whether they can be claimed now.
    ready: Option<bool>,
    /// A ticket that they depend on.
    #[param(inline)]
    depends_on: Option<TicketId>,
    /// `created` (default) is oldest first; `priority` is the order in which they are claimed; `-updated_at` begins
    /// with the latest change.
    #[param(inline)]
    sort: Option<Sort>,
    /// Entries on the page, 1 to 1,000; default 500. Pages of very large records have fewer.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page, with the same filter.
    #[param(pattern = "^[0-9a-f]{16}\\..+$", example = "5c1f9d2ab3e40717.tkt_01jv0000000000000000000000")]
    cursor: Option<String>,
}

/// List tickets
///
/// Returns a page of the account's tickets.
#[utoipa::path(
    get, path = "/api/tickets", tag = "tickets", operation_id = "list_tickets", params(TicketsQuery),
    security(("bearer" = ["tickets:read"])),
    responses((status = 200, description = "A page of tickets", body = TicketList))
)]
pub(super) async fn list(
    State(state): State<TicketsState>,
    caller: Caller<TicketsRead>,
    Query(query): Query<TicketsQuery>,
) -> Answer<TicketList> {
    let query = query.parse(caller.account.id)?;
    let filter_hash = filter_hash(&query);
    caller.memory.reserve(MAX_ANSWER_BYTES as u64).await?;
    let page = state.store.list_tickets(query).await?;
    let next_cursor = page.next.map(|next| format!("{filter_hash}.{}", encode_position(next)));
    Ok(Json(TicketList { tickets: page.tickets, next_cursor }))
}

impl TicketsQuery {
    fn parse(self, account: AccountId) -> Result<ListTickets, Failure> {
        let filter = TicketFilter {
            statuses: parse_list("status", self.status.as_deref())?,
            priorities: parse_list("priority", self.priority.as_deref())?,
            assignee: self.assignee,
            labels: skep_tickets::deduplicated_labels(
                &parse_list::<Label>("label", self.label.as_deref())?,
                "label",
            )?,
            ready: self.ready,
            depends_on: self.depends_on,
        };
        let sort = match self.sort {
            None | Some(Sort::Created) => TicketSort::Created,
            Some(Sort::Priority) => TicketSort::Priority,
            Some(Sort::Updated) => TicketSort::Updated,
        };
        let limit = check_limit(self.limit)?;
        let mut query = ListTickets { account, filter, sort, limit, after: None, at: Timestamp::now() };
        query.after = self.cursor.as_deref().map(|cursor| parse_cursor(cursor, &query)).transpose()?;
        Ok(query)
    }
}

/// Checks the size of a page, and fills in its default.
pub(super) fn check_limit(limit: Option<u32>) -> Result<u32, Failure> {
    let limit = limit.unwrap_or(DEFAULT_PAGE);
    if (1..=MAX_PAGE).contains(&limit) {
        return Ok(limit);
    }
    Err(invalid(format!("`limit` is {limit}; it must be a whole number from 1 to {MAX_PAGE}")))
}

/// Parses a comma-separated list into sorted, distinct values.
fn parse_list<T: FromStr<Err: Display> + Ord>(field: &str, text: Option<&str>) -> Result<Vec<T>, Failure> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let values =
        text.split(',').map(|word| word.parse::<T>().map_err(|error| invalid(format!("`{field}`: {error}"))));
    let mut values = values.collect::<Result<Vec<_>, _>>()?;
    values.sort_unstable();
    values.dedup();
    Ok(values)
}

/// The hash that binds a cursor to its filter and order: with other ones it would skip some tickets and repeat others.
fn filter_hash(query: &ListTickets) -> String {
    let bound = format!("{} {:?} {:?}", query.account, query.filter, query.sort);
    Sha256::digest(bound.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn encode_position(position: TicketPosition) -> String {
    match position {
        TicketPosition::Created(id) => id.to_string(),
        TicketPosition::Priority(priority, id) => format!("{priority}.{id}"),
        TicketPosition::Updated(at, id) => format!("{}.{id}", at.as_millisecond()),
    }
}

fn parse_cursor(cursor: &str, query: &ListTickets) -> Result<TicketPosition, Failure> {
    let malformed =
        || invalid(format!("`cursor` is `{cursor}`, which is not one; take it from `next_cursor`"));
    let (bound, place) = cursor.split_once('.').ok_or_else(malformed)?;
    if bound != filter_hash(query) {
        return Err(invalid(
            "`cursor` belongs to another filter or order; begin without it, or ask with the filter that it came with"
                .to_owned(),
        ));
    }
    let position = match query.sort {
        TicketSort::Created => place.parse().ok().map(TicketPosition::Created),
        TicketSort::Priority => place.split_once('.').and_then(|(priority, id)| {
            Some(TicketPosition::Priority(priority.parse().ok()?, id.parse().ok()?))
        }),
        TicketSort::Updated => place.split_once('.').and_then(|(at, id)| {
            let at = Timestamp::from_millisecond(at.parse().ok()?).ok()?;
            Some(TicketPosition::Updated(at, id.parse().ok()?))
        }),
    };
    position.ok_or_else(malformed)
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidValue, message)
}
