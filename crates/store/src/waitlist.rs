//! Commands and queries for the waitlist.

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{WaitlistId, waitlist::WaitlistEntry};

use crate::Result;

/// The methods of a [`Store`](crate::Store) for the waitlist.
#[async_trait]
#[warn(missing_docs)]
pub trait WaitlistStore: Send + Sync {
    /// Adds an address to the waitlist. The work is the same for an address that is on it already, so that response
    /// times do not reveal whether it is.
    async fn join_waitlist(&self, command: JoinWaitlist) -> Result<()>;
    /// Returns a page of the waitlist, newest first, each address once.
    async fn list_waitlist(&self, query: ListWaitlist) -> Result<WaitlistPage>;
    /// Removes an address with everything that was submitted with it; fails with `UnknownWaitlistEntry`.
    async fn remove_from_waitlist(&self, command: RemoveFromWaitlist) -> Result<WaitlistEntry>;
}

/// Adds an address to the waitlist.
#[derive(Debug, Clone)]
pub struct JoinWaitlist {
    /// The address as submitted. Addresses are compared case-insensitively.
    pub email: String,
    pub name: Option<String>,
    pub company: Option<String>,
    pub use_case: Option<String>,
    pub at: Timestamp,
}

/// Lists the waitlist, newest first.
#[derive(Debug, Clone, Copy)]
pub struct ListWaitlist {
    /// Page size; at least 1.
    pub limit: u32,
    /// Cursor: only entries older than this one.
    pub before: Option<WaitlistId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitlistPage {
    /// Newest first.
    pub entries: Vec<WaitlistEntry>,
    /// `before` of the next page; `None` on the last page.
    pub next: Option<WaitlistId>,
}

/// Removes an address from the waitlist, with everything that was submitted with it.
#[derive(Debug, Clone)]
pub enum RemoveFromWaitlist {
    Id(WaitlistId),
    /// Compared case-insensitively.
    Email(String),
}
