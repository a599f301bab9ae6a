//! Records, queries and retention of the audit log.

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{AccountId, AuditId, ErrorCode, KeyId, audit::AuditEntry};

use crate::Result;

/// The methods of a [`Store`](crate::Store) for the audit log and the retention of history.
#[async_trait]
#[warn(missing_docs)]
pub trait AuditStore: Send + Sync {
    /// Writes audit entries; entries whose id exists already are ignored.
    async fn record_audit(&self, entries: Vec<NewAuditEntry>) -> Result<()>;
    /// Returns a page of the audit log, newest first.
    async fn list_audit(&self, query: ListAudit) -> Result<AuditPage>;
    /// Deletes one batch of the oldest audit entries and events beyond the retention limits, and returns how many.
    async fn trim_history(&self, command: TrimHistory) -> Result<Trimmed>;
}

/// An audit entry with the account that owns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// Orders entries by time, with millisecond precision.
    pub id: AuditId,
    /// The account that may see the entry; `None` if the request had no valid key.
    pub account: Option<AccountId>,
    pub entry: AuditEntry,
}

/// Lists audit entries, newest first.
#[derive(Debug, Clone)]
pub struct ListAudit {
    pub account: AccountId,
    /// Whether entries without an account are included.
    pub include_unattributed: bool,
    pub filter: AuditFilter,
    /// Page size; at least 1.
    pub limit: u32,
    /// Cursor: only entries older than this one.
    pub before: Option<AuditId>,
}

/// Conditions that listed entries satisfy; `None` is no condition.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    pub key: Option<KeyId>,
    pub action: Option<String>,
    pub outcome: Option<OutcomeFilter>,
    /// Inclusive lower bound.
    pub since: Option<Timestamp>,
    /// Exclusive upper bound.
    pub until: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeFilter {
    /// The request succeeded.
    Succeeded,
    Refused,
    Status(u16),
    Code(ErrorCode),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditPage {
    /// Newest first.
    pub entries: Vec<AuditEntry>,
    /// `before` of the next page; `None` on the last page.
    pub next: Option<AuditId>,
}

/// Deletes one batch of the oldest audit entries and events beyond the retention limits.
#[derive(Debug, Clone, Copy)]
pub struct TrimHistory {
    /// Entries and events older than this are deleted.
    pub before: Timestamp,
    /// Approximate disk space for audit and events together, in bytes: half for each. Where a half is exceeded, the oldest of the
    /// account that takes the most of it are deleted. Entries without an account may take at most a fifth of the audit's half.
    pub bytes: u64,
    /// Maximum number of rows to delete of each kind. A small number keeps the write transaction short.
    pub batch: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trimmed {
    pub entries: u64,
    pub events: u64,
    /// Webhook deliveries, which are deleted with their events.
    pub deliveries: u64,
    /// Records of ended VMs.
    pub vms: u64,
    /// Logs and chunks of logs.
    pub logs: u64,
}

impl Trimmed {
    /// Whether nothing was deleted, so that trimming is complete.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
