//! `GET /api/audit`.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{
    AuditId, ErrorCode, Failure, KeyId, Scope,
    audit::{AuditList, UNMATCHED_ACTION},
};
use skep_store::{AuditFilter, AuditStore, ListAudit, OutcomeFilter};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes};
use crate::{
    audit::Actions,
    extract::{Admin, Caller, Query},
    json::Json,
};

/// Entries on a page without `limit`.
const DEFAULT_PAGE: u32 = 100;
const MAX_PAGE: u32 = 1_000;

#[derive(Clone)]
pub(crate) struct AuditLogState {
    pub store: Arc<dyn AuditStore>,
    /// The operation ids. Set after all routes were added, because this route is one of them.
    pub actions: Arc<OnceLock<Arc<Actions>>>,
}

pub(crate) fn routes(reader: AuditLogState) -> Routes {
    vec![routes!(list).with_state(reader)]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Entries on the page, 1 to 1,000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[param(inline, value_type = Option<AuditId>)]
    cursor: Option<String>,
    /// Only entries of this key: `key_` and 26 characters.
    #[param(inline)]
    key: Option<KeyId>,
    /// Only this operation, by its id in this document, such as `boot`; `unmatched` for requests that matched no route.
    action: Option<String>,
    /// Only this outcome: `done`, `refused`, a status such as `403`, or a code such as `scope_missing`.
    outcome: Option<String>,
    /// Only requests that arrived at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Only requests that arrived before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
}

/// Read the audit log
///
/// Every write and every refused request of the account, newest first: who did what, from where, on which resource,
/// with which outcome. Successful reads are not logged. Callers with `server:admin` also see requests that were refused
/// because their key was unknown. Entries are kept for 30 days, or less if all exceed their part of the 10 GiB for
/// events and entries: the oldest of the account that has the most are deleted then.
#[utoipa::path(
    get, path = "/api/audit", tag = "audit", operation_id = "list_audit", params(AuditQuery),
    security(("bearer" = ["admin"])),
    responses((status = 200, description = "A page of the audit log", body = AuditList, example = json!({
        "entries": [{
            "at": "2026-05-01T12:00:00.000Z",
            "key": {"id": "key_01jv0000000000000000000000", "prefix": "sk-skep-prod-3f9a1c20"},
            "address": "192.0.2.7", "action": "end_vm", "resource": "vm_01jv0000000000000000000000",
            "outcome": {"status": 200, "code": null}, "request_id": "01jv0000000000000000000000"
        }],
        "next_cursor": null
    })))
)]
async fn list(
    State(reader): State<AuditLogState>,
    caller: Caller<Admin>,
    Query(query): Query<AuditQuery>,
) -> Answer<AuditList> {
    let is_operator =
        caller.account.name == DEFAULT_ACCOUNT && caller.key.scopes.contains(&Scope::ServerAdmin);
    let (limit, before, filter) = check(query, reader.actions.get().map(Arc::as_ref))?;
    let query =
        ListAudit { account: caller.account.id, include_unattributed: is_operator, filter, limit, before };
    let page = reader.store.list_audit(query).await?;
    Ok(Json(AuditList { entries: page.entries, next_cursor: page.next.map(|id| id.to_string()) }))
}

/// Checks the parameters: the size of the page, its cursor, and the filter.
fn check(
    query: AuditQuery,
    actions: Option<&Actions>,
) -> Result<(u32, Option<AuditId>, AuditFilter), Failure> {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return invalid(format!("`limit` is {limit}; it must be a whole number from 1 to {MAX_PAGE}"));
    }
    let before = match query.cursor.as_deref().map(str::parse::<AuditId>) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(error)) => return invalid(format!("`cursor` is not a `next_cursor` of this list: {error}")),
    };
    if let (Some(action), Some(actions)) = (&query.action, actions) {
        let known = actions.all();
        if action != UNMATCHED_ACTION && !known.contains(&action.as_str()) {
            let known = known.join(", ");
            return invalid(format!(
                "`action` is {action:?}, which is not an operation; known: {known}, {UNMATCHED_ACTION}"
            ));
        }
    }
    let outcome = query.outcome.as_deref().map(parse_outcome).transpose()?;
    let AuditQuery { key, action, since, until, .. } = query;
    Ok((limit, before, AuditFilter { key, action, outcome, since, until }))
}

fn parse_outcome(text: &str) -> Result<OutcomeFilter, Failure> {
    let code = ErrorCode::ALL.iter().copied().find(|code| code.as_str() == text);
    let status = text.parse().ok().filter(|status| (100..600).contains(status));
    match (text, status, code) {
        ("done", ..) => Ok(OutcomeFilter::Succeeded),
        ("refused", ..) => Ok(OutcomeFilter::Refused),
        (_, Some(status), _) => Ok(OutcomeFilter::Status(status)),
        (_, _, Some(code)) => Ok(OutcomeFilter::Code(code)),
        _ => invalid(format!(
            "`outcome` is {text:?}; give `done`, `refused`, a status such as 403, or a code of `Skep-Error`"
        )),
    }
}

fn invalid<T>(message: String) -> Result<T, Failure> {
    Err(Failure::new(ErrorCode::InvalidValue, message))
}
