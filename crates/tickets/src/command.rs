//! What can be asked of a ticket.

use std::time::Duration;

use jiff::Timestamp;
use skep_api::{
    Patch, VmId,
    tickets::{AttemptOutcome, Object},
};

/// What shall happen to a ticket.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Somebody wants to hold it, or to hold it longer.
    Claim(Claim),
    /// Somebody says that it is done, or given up.
    Finish(Finishing),
    /// It shall be pending again.
    Release(Release),
    /// A result without a word of what it means.
    GiveResult(Patch<Object>),
    /// Its holder lives.
    Beat(Beat),
    /// Its attempt ended by itself.
    End {
        /// Which attempt: another one is none of this command's business.
        attempt: u32,
        /// What ended it.
        cause: EndCause,
        /// The attempts before, for the result of a ticket that fails by them.
        earlier: Vec<EndedAttempt>,
    },
    /// Its time may have come.
    Wake {
        /// The time that passed: another one is none of this command's business.
        not_before: Timestamp,
    },
}

/// A claim, or its renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// For whom.
    pub assignee: Assignee,
    /// For which VM.
    pub vm: Option<VmId>,
    /// The attempt that the caller believes it holds.
    pub attempt: Option<u32>,
    /// For how long.
    pub lease: Option<Duration>,
}

/// Whom a claim is for. Two processes behind one key never both win: only a name that was given renews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assignee {
    /// As the caller said.
    Named(String),
    /// The name of the caller's key, where it said nothing.
    OfKey(String),
}

/// An end that somebody reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Finishing {
    /// Which.
    pub resolution: Resolution,
    /// What came out of it.
    pub result: Patch<Object>,
    /// The attempt that the caller works on.
    pub attempt: Option<u32>,
    /// Who the caller says it is.
    pub assignee: Option<String>,
    /// The name of the caller's key.
    pub key_name: String,
}

/// How a ticket is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// It is done.
    Completed,
    /// It is given up.
    Failed,
}

/// A ticket that shall be pending again: given back, or retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The attempt that the caller works on.
    pub attempt: Option<u32>,
    /// Who the caller says it is.
    pub assignee: Option<String>,
    /// How long nobody may claim it.
    pub retry_after: Option<Duration>,
    /// Whether the status was named, as a retry needs.
    pub by_status: bool,
}

/// A sign of life.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beat {
    /// The attempt that the caller works on.
    pub attempt: Option<u32>,
    /// Who the caller says it is.
    pub assignee: Option<String>,
    /// For how long from now; as long as before unless given.
    pub lease: Option<Duration>,
}

/// What ends an attempt by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// No beat came in time.
    LeaseExpired,
    /// It took longer than it may.
    MaxRuntime,
    /// Its VM ended by itself.
    VmEnded,
    /// The command that its VM was booted with ended, and left the ticket open.
    CommandEnded,
    /// Its VM was ended by an operator. Not counted.
    VmDeleted,
}

impl EndCause {
    /// Whether it counts as a failed attempt.
    pub const fn is_counted(self) -> bool {
        !matches!(self, Self::VmDeleted)
    }

    /// How the attempt ended, for the history.
    pub const fn outcome(self) -> AttemptOutcome {
        match self {
            Self::LeaseExpired => AttemptOutcome::LeaseExpired,
            Self::MaxRuntime => AttemptOutcome::MaxRuntime,
            Self::VmEnded => AttemptOutcome::VmEnded,
            Self::CommandEnded => AttemptOutcome::CommandEnded,
            Self::VmDeleted => AttemptOutcome::Released,
        }
    }
}

/// An attempt that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedAttempt {
    /// Its number.
    pub attempt: u32,
    /// Who held the ticket.
    pub assignee: String,
    /// How it ended.
    pub outcome: AttemptOutcome,
}
