//! The waitlist: commands and pages.

use jiff::Timestamp;
use skep_api::{WaitlistId, waitlist::WaitlistEntry};

/// Puts somebody on the waitlist.
#[derive(Debug, Clone)]
pub struct JoinWaitlist {
    /// The address as it was given. Addresses are compared without regard to case.
    pub email: String,
    /// Who it is.
    pub name: Option<String>,
    /// For whom they work.
    pub company: Option<String>,
    /// What they want skep for.
    pub use_case: Option<String>,
    /// Now.
    pub at: Timestamp,
}

/// Asks for a page of the waitlist, newest first.
#[derive(Debug, Clone, Copy)]
pub struct ListWaitlist {
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended: only older entries than this one.
    pub before: Option<WaitlistId>,
}

/// A page of the waitlist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitlistPage {
    /// Newest first.
    pub entries: Vec<WaitlistEntry>,
    /// The next page's `before`; `None` at the end.
    pub next: Option<WaitlistId>,
}

/// Removes somebody from the waitlist, and all that they said.
#[derive(Debug, Clone)]
pub enum RemoveFromWaitlist {
    /// By the entry's id.
    Id(WaitlistId),
    /// By the address, in any case.
    Email(String),
}
