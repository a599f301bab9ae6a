//! `GET /api/audit`.

use std::sync::{Arc, OnceLock};

use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{
    ErrorCode, Failure, Scope,
    audit::{AuditList, ListAudit, UNMATCHED_ACTION},
};
use skep_store::{AuditFilter, AuditStore, OutcomeFilter};

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
    page,
};
use crate::{audit::Actions, error::Refusal};

#[derive(Clone)]
pub(crate) struct AuditLogState {
    pub store: Arc<dyn AuditStore>,
    /// The operation ids. Set after all routes were added, because this route is one of them.
    pub actions: Arc<OnceLock<Arc<Actions>>>,
}

pub(crate) fn routes(reader: &AuditLogState) -> Routes {
    endpoints![reader; ListAudit]
}

impl Handle<AuditLogState> for ListAudit {
    async fn handle(self, reader: AuditLogState, request: Request<()>) -> Result<AuditList, Refusal> {
        let caller = &request.caller;
        let is_operator =
            caller.account.name == DEFAULT_ACCOUNT && caller.key.scopes.contains(&Scope::ServerAdmin);
        let (limit, before) = page::check(self.limit, self.cursor.as_deref())?;
        let filter = filter(self, reader.actions.get().map(Arc::as_ref))?;
        let (account, include_unattributed) = (caller.account.id, is_operator);
        let query = skep_store::ListAudit { account, include_unattributed, filter, limit, before };
        let page = reader.store.list_audit(query).await?;
        Ok(AuditList { entries: page.entries, next_cursor: page.next.map(|id| id.to_string()) })
    }
}

fn filter(query: ListAudit, actions: Option<&Actions>) -> Result<AuditFilter, Failure> {
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
    let ListAudit { key, action, since, until, .. } = query;
    Ok(AuditFilter { key, action, outcome, since, until })
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
