//! The audit: what is written, what is asked for, and how long it is kept.

use jiff::Timestamp;
use skep_api::{AccountId, AuditId, ErrorCode, KeyId, audit::AuditEntry};

/// An entry, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// Its place: later in order than all that were made before its millisecond.
    pub id: AuditId,
    /// The account that may see it; `None` where no key was known.
    pub account: Option<AccountId>,
    /// What its readers see.
    pub entry: AuditEntry,
}

/// Asks for a page of the audit, newest first.
#[derive(Debug, Clone)]
pub struct ListAudit {
    /// Whose entries.
    pub account: AccountId,
    /// Whether those without an account are among them.
    pub strangers: bool,
    /// Only those that match.
    pub filter: AuditFilter,
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended: only older entries than this one.
    pub before: Option<AuditId>,
}

/// Which entries; what is `None` holds nothing back.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Of this key.
    pub key: Option<KeyId>,
    /// With this action.
    pub action: Option<String>,
    /// That ended so.
    pub outcome: Option<OutcomeFilter>,
    /// Not before this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

/// How requests ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeFilter {
    /// They did what they should.
    Done,
    /// They were refused.
    Refused,
    /// With this status.
    Status(u16),
    /// With this code.
    Code(ErrorCode),
}

/// A page of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditPage {
    /// Newest first.
    pub entries: Vec<AuditEntry>,
    /// The next page's `before`; `None` at the end.
    pub next: Option<AuditId>,
}

/// Deletes a few of the oldest entries and events that are kept no longer.
#[derive(Debug, Clone, Copy)]
pub struct TrimHistory {
    /// What is older goes.
    pub before: Timestamp,
    /// What they may take on the disk together, about. Audit and events have one half each; of the audit's, what strangers
    /// caused may take no more than a fifth, so that a flood of theirs pushes out nothing but itself.
    pub bytes: u64,
    /// Rows that go at once, of each kind: a small number keeps nobody waiting.
    pub batch: u32,
}

/// What was trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trimmed {
    /// Entries of the audit.
    pub entries: u64,
    /// Events.
    pub events: u64,
    /// Deliveries of webhooks, which go with their events.
    pub deliveries: u64,
    /// Records of VMs that ended.
    pub vms: u64,
    /// Pieces of logs, and logs.
    pub logs: u64,
}

impl Trimmed {
    /// Whether nothing was left to do.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
