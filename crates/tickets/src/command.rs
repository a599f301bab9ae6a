//! Commands on tickets.

use std::time::Duration;

use jiff::Timestamp;
use skep_api::{
    Label, Patch, VmId,
    tickets::{AttemptOutcome, Heartbeat, Object, Priority},
};

/// A command on a ticket.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Claims the ticket, or renews a claim.
    Claim(Claim),
    /// Completes or fails the ticket.
    Finish(FinishRequest),
    /// Makes the ticket pending again.
    Release(Release),
    /// A result without a status. Accepted only as a repetition of the result that the ticket has.
    ResultOnly(Patch<Object>),
    /// Renews the lease. Its progress has no effect here.
    Heartbeat(Heartbeat),
    /// Ends an attempt that its holder did not finish.
    EndAttempt {
        /// The attempt that ends. The command has no effect if another attempt is current.
        attempt: u32,
        cause: EndCause,
        /// Previous attempts, for the result of a ticket that fails because of them.
        earlier: Vec<EndedAttempt>,
    },
    /// Makes the ticket ready if its `not_before` has passed.
    Wake {
        /// The time that passed. The command has no effect if the ticket waits for another time.
        not_before: Timestamp,
    },
}

/// A claim, or its renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub assignee: Assignee,
    pub vm: Option<VmId>,
    /// The attempt that the caller believes to hold.
    pub attempt: Option<u32>,
    /// The length of the lease; a default unless given.
    pub lease: Option<Duration>,
}

/// A claim of tickets that are ready, whichever they are. The request of the API can leave out each field, and one default is
/// the name of the caller's key; here every field has its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimReady {
    /// The claim of each of them.
    pub each: Claim,
    /// The maximum number of tickets.
    pub count: u32,
    /// Only tickets with one of these priorities; empty matches all.
    pub priorities: Vec<Priority>,
    /// Only tickets that have all of these labels.
    pub labels: Vec<Label>,
}

/// The holder that a request names. Only an explicit name renews a claim, so that of two processes with the same key
/// only one gets the ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assignee {
    /// Given in the request.
    Named(String),
    /// The name of the caller's key, because the request gave none.
    KeyName(String),
}

impl Assignee {
    /// The name that the request gave.
    pub fn named(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::KeyName(_) => None,
        }
    }

    /// The name of the holder after a successful claim.
    pub fn name(&self) -> &str {
        let (Self::Named(name) | Self::KeyName(name)) = self;
        name
    }
}

/// A request to complete or fail a ticket.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishRequest {
    pub resolution: Resolution,
    pub result: Patch<Object>,
    /// The attempt of the caller.
    pub attempt: Option<u32>,
    /// The holder that the caller claims to be; checked only if the request names it.
    pub assignee: Assignee,
}

/// How a ticket is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    Completed,
    Failed,
}

/// A request to make a ticket pending: releases a held ticket, or retries a failed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The attempt of the caller.
    pub attempt: Option<u32>,
    /// The holder that the caller claims to be.
    pub assignee: Option<String>,
    /// How long the ticket cannot be claimed.
    pub retry_after: Option<Duration>,
    /// Whether the request gave a status, which a retry requires.
    pub by_status: bool,
}

/// Why an attempt ended without completion or release by its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    LeaseExpired,
    /// The attempt exceeded `max_runtime_ms`.
    MaxRuntime,
    /// The VM ended, but not by request.
    VmEnded,
    /// The boot command of the VM ended and left the ticket open.
    CommandEnded,
    /// The VM was ended by request. Does not count.
    VmDeleted,
}

impl EndCause {
    /// Whether the attempt counts towards `max_attempts`.
    pub const fn is_counted(self) -> bool {
        !matches!(self, Self::VmDeleted)
    }

    /// The outcome for the history.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedAttempt {
    pub attempt: u32,
    pub assignee: String,
    pub outcome: AttemptOutcome,
}
