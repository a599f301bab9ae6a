//! `/api/audit`.

use skep_api::{KeyId, audit::AuditList};

use crate::{Answered, Client, Result, client::with_query};

/// Which entries of the audit, and which page of them; what is `None` holds nothing back.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// Entries on the page, 1 to 1,000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Of this key.
    pub key: Option<KeyId>,
    /// With this action: an operation's id.
    pub action: Option<String>,
    /// That ended so: `done`, `refused`, a status or a code.
    pub outcome: Option<String>,
    /// That arrived at this time or later, as RFC 3339.
    pub since: Option<String>,
    /// That arrived before this time, as RFC 3339.
    pub until: Option<String>,
}

impl Client {
    /// `GET /api/audit`.
    ///
    /// # Errors
    /// Those of every call: see [`crate::Error`].
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
