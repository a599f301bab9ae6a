//! Requests of `/api/audit`.

use skep_api::{KeyId, audit::AuditList};

use crate::{Answered, Client, Result, client::with_query};

/// Selects entries of the audit log. Fields that are `None` do not restrict the selection.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// The maximum number of entries, 1 to 1,000.
    pub limit: Option<u32>,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// Only entries of this key.
    pub key: Option<KeyId>,
    /// Only entries with this action: an operation's id in the OpenAPI document.
    pub action: Option<String>,
    /// Only entries with this outcome: `done`, `refused`, an HTTP status or an error code.
    pub outcome: Option<String>,
    /// Only requests that arrived at or after this time, as RFC 3339.
    pub since: Option<String>,
    /// Only requests that arrived before this time, as RFC 3339.
    pub until: Option<String>,
}

impl Client {
    /// `GET /api/audit`: a page of the audit log.
    ///
    /// # Errors
    /// Those of every request: see [`crate::Error`].
    pub async fn audit(&self, query: &AuditQuery) -> Result<Answered<AuditList>> {
        let given = [
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("cursor", query.cursor.clone()),
            ("key", query.key.map(|key| key.to_string())),
            ("action", query.action.clone()),
            ("outcome", query.outcome.clone()),
            ("since", query.since.clone()),
            ("until", query.until.clone()),
        ];
        self.get(&with_query("api/audit", &given)).await
    }
}
