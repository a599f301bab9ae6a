//! Lists tickets, with filters, orders, and cursors that are bound to them.

use std::{fmt::Display, str::FromStr};

use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use skep_api::{
    AccountId, ErrorCode, Failure, Label, TicketId,
    budget::MAX_ANSWER_BYTES,
    tickets::{TicketList, TicketSummaryList, TicketTotals},
};
use skep_store::{ListTickets, TicketFilter, TicketPage, TicketPosition, TicketSort};
use utoipa::{
    IntoParams, PartialSchema, ToSchema,
    openapi::{Ref, RefOr, Schema, schema::AnyOfBuilder},
};

use super::TicketsState;
use crate::{
    extract::{Caller, NoParameters, Query, TicketsRead},
    json::Json,
    openapi::refusals::TicketRefused,
    routes::{Answer, page},
};

/// Entries on a page without `limit`.
const DEFAULT_PAGE: u32 = 500;
const MAX_PAGE: u32 = 1_000;
/// The longest text to search for, in characters.
const MAX_SEARCH_CHARS: usize = 200;

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

/// Which fields of the tickets a list has.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum View {
    /// All fields.
    Full,
    /// Those of a summary.
    Summary,
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
    /// A ticket with which they are connected by dependencies, in either direction and over any number of steps; itself
    /// included. Of more than 1,000 connected tickets the nearest ones are listed, and `truncated` is true.
    #[param(inline)]
    related_to: Option<TicketId>,
    /// A text, 1 to 200 characters, that their title or id contains, in any case. A page may have fewer tickets than
    /// `limit`, even none, and a `next_cursor`, because a search examines at most 100,000 tickets for one page.
    #[param(min_length = 1, max_length = 200, example = "parser")]
    q: Option<String>,
    /// `summary` leaves out `description`, `result` and `metadata`. Default: the whole records.
    #[param(inline)]
    view: Option<View>,
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
    responses(
        (status = 200, description = "A page of tickets; with `view=summary`, of summaries", body = TicketListAnswer,
         example = json!({"tickets": [], "next_cursor": null})),
        TicketRefused,
    )
)]
pub(super) async fn list(
    State(state): State<TicketsState>,
    caller: Caller<TicketsRead>,
    Query(query): Query<TicketsQuery>,
) -> Answer<TicketListAnswer> {
    let view = query.view.unwrap_or(View::Full);
    let query = query.parse(caller.account.id)?;
    let filter_hash = filter_hash(&query);
    caller.memory.reserve(MAX_ANSWER_BYTES as u64).await?;
    let cursor =
        |next: Option<TicketPosition>| next.map(|next| format!("{filter_hash}.{}", encode_position(next)));
    Ok(Json(match view {
        View::Full => {
            let TicketPage { tickets, truncated, next } = state.store.list_tickets(query).await?;
            TicketListAnswer::Full(TicketList { tickets, truncated, next_cursor: cursor(next) })
        }
        View::Summary => {
            let TicketPage { tickets, truncated, next } = state.store.list_ticket_summaries(query).await?;
            TicketListAnswer::Summary(TicketSummaryList { tickets, truncated, next_cursor: cursor(next) })
        }
    }))
}

/// A page of tickets in the requested view.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum TicketListAnswer {
    Full(TicketList),
    Summary(TicketSummaryList),
}

// Derived, it would be `oneOf`, which an empty page contradicts: it is valid in either view.
impl PartialSchema for TicketListAnswer {
    fn schema() -> RefOr<Schema> {
        let item = |name| Ref::from_schema_name(name);
        let description = Some("A page of tickets, or of summaries with `view=summary`.");
        AnyOfBuilder::new()
            .description(description)
            .item(item(TicketList::name()))
            .item(item(TicketSummaryList::name()))
            .into()
    }
}

impl ToSchema for TicketListAnswer {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((TicketList::name().into_owned(), TicketList::schema()));
        schemas.push((TicketSummaryList::name().into_owned(), TicketSummaryList::schema()));
        TicketList::schemas(schemas);
        TicketSummaryList::schemas(schemas);
    }
}

/// Count tickets
///
/// Returns how many tickets the account has, by status. Pending tickets are `ready`, `blocked` by a dependency that is
/// not completed, or `waiting` for a time alone. The cost hardly depends on the number of tickets.
#[utoipa::path(
    get, path = "/api/tickets/summary", tag = "tickets", operation_id = "count_tickets",
    security(("bearer" = ["tickets:read"])),
    responses((status = 200, description = "The numbers of tickets", body = TicketTotals))
)]
pub(super) async fn totals(
    State(state): State<TicketsState>,
    caller: Caller<TicketsRead>,
    _: Query<NoParameters>,
) -> Answer<TicketTotals> {
    Ok(Json(state.store.ticket_totals(caller.account.id).await?))
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
            related_to: self.related_to,
            search: self.q.map(check_search).transpose()?,
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

fn check_search(text: String) -> Result<String, Failure> {
    match text.chars().count() {
        1..=MAX_SEARCH_CHARS => Ok(text),
        length => Err(invalid(format!("`q` has {length} characters; it must have 1 to {MAX_SEARCH_CHARS}"))),
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
    page::filter_hash(&format!("{} {:?} {:?}", query.account, query.filter, query.sort))
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
