//! Deletes old events and audit entries: they are kept for 30 days or 10 GiB, whichever is less.

use std::{convert::Infallible, time::Duration};

use jiff::{SignedDuration, Timestamp};
use skep_store::{AuditStore, TrimHistory};

/// How often rows are deleted. Under the highest load, some tens of MiB are written in between.
const INTERVAL: Duration = Duration::from_secs(60);
/// Pause between two batches, so that other writes get their turn at the store.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    pub max_age: SignedDuration,
    /// Maximum size, in bytes on the disk.
    pub max_bytes: u64,
    /// Rows deleted in one transaction.
    pub batch: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age: SignedDuration::from_hours(30 * 24), max_bytes: 10 << 30, batch: 500 }
    }
}

impl Retention {
    /// Deletes rows over the limits at intervals. Never returns.
    pub(crate) async fn enforce(self, store: &dyn AuditStore) -> Infallible {
        loop {
            self.trim(store).await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Deletes rows until both limits are met.
    async fn trim(self, store: &dyn AuditStore) {
        // Below the earliest timestamp, nothing is too old.
        let before = Timestamp::now().checked_sub(self.max_age).unwrap_or(Timestamp::MIN);
        let command = TrimHistory { before, bytes: self.max_bytes, batch: self.batch };
        loop {
            match store.trim_history(command).await {
                Ok(trimmed) if trimmed.is_empty() => return,
                Ok(trimmed) => {
                    tracing::debug!(trimmed.entries, trimmed.events, "old entries and events were deleted");
                }
                Err(error) => {
                    tracing::warn!(%error, "old entries and events were not deleted; tried again later");
                    return;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use skep_api::{
        AuditId,
        audit::{AuditEntry, Outcome},
    };
    use skep_store::{
        AccountStore, AuditFilter, EnsureDefaultAccount, ListAudit, NewAuditEntry, SqliteSettings,
        SqliteStore,
    };

    use super::*;

    fn entry(at: Timestamp) -> NewAuditEntry {
        let outcome = Outcome { status: Some(401), code: None };
        let (action, request_id) = ("boot".to_owned(), at.to_string());
        let entry = AuditEntry {
            at,
            key: None,
            address: None,
            action,
            resource: None,
            egress: None,
            outcome,
            request_id,
        };
        NewAuditEntry { id: AuditId::generate(), account: None, entry }
    }

    #[tokio::test]
    async fn old_rows_are_deleted_in_batches() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(SqliteSettings::at(folder.path().join("skep.db"))).await.unwrap();
        let now = Timestamp::now();
        let old = now - SignedDuration::from_hours(31 * 24);
        let young = now - SignedDuration::from_hours(29 * 24);
        store.record_audit((0..25).map(|_| entry(old)).collect()).await.unwrap();
        // Entries are ordered by id, which has a resolution of milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
        store.record_audit((0..7).map(|_| entry(young)).collect()).await.unwrap();
        Retention { batch: 4, ..Retention::default() }.trim(&store).await;
        let account = EnsureDefaultAccount { roots: Vec::new(), at: now };
        let account = store.ensure_default_account(account).await.unwrap().id;
        let filter = AuditFilter::default();
        let query = ListAudit { account, include_unattributed: true, filter, limit: 1_000, before: None };
        let left = store.list_audit(query).await.unwrap().entries;
        assert_eq!(
            left.iter().map(|entry| entry.at.as_millisecond()).collect::<Vec<_>>(),
            [young.as_millisecond(); 7]
        );
    }
}
