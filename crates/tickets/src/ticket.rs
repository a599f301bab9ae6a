//! The state of a ticket, as far as the rules depend on it.

use std::time::Duration;

use jiff::Timestamp;
use skep_api::{
    TicketId, VmId,
    tickets::{Blocker, Object, TicketStatus},
};

/// The state of a ticket that determines which commands are permitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticket {
    pub id: TicketId,
    /// The number of the latest attempt; 0 before the first claim.
    pub attempt: u32,
    /// Attempts since creation or the last retry that ended without completion or release.
    pub counted_attempts: u32,
    /// The limit of `counted_attempts`, at which the ticket fails.
    pub max_attempts: u32,
    /// The earliest time of the next claim.
    pub wait: Wait,
    pub blockers: Blockers,
    /// When the latest attempt began.
    pub started_at: Option<Timestamp>,
    pub state: State,
}

/// The earliest time at which a ticket can be claimed. The timer records that the time has passed, so that the ready
/// event is emitted once and a clock that is set back does not make the ticket wait again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// There is no such time.
    None,
    /// The timer for this time has not fired yet.
    Until(Timestamp),
    /// The timer for this time has fired.
    Passed(Timestamp),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers {
    pub total: u32,
    /// The first of them; empty unless the caller loaded them.
    pub named: Vec<Blocker>,
}

/// The status of a ticket, with the data that exists only in that status.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    Pending {
        /// The holder of the previous attempt, if that attempt ended without completion or release.
        lapsed: Option<LapsedHolder>,
    },
    InProgress(Holder),
    Completed(Finish),
    Failed(Finish),
}

/// The holder of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub assignee: String,
    pub vm: Option<VmId>,
    pub lease: Lease,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// From the last renewal.
    pub length: Duration,
    /// In wall-clock time, for display. The timer that ends the lease uses the monotonic clock.
    pub expires_at: Timestamp,
}

/// The holder of an attempt that ended without completion or release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LapsedHolder {
    pub assignee: String,
    pub vm: Option<VmId>,
}

/// The end of a ticket that is completed or failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The holder; `None` if the ticket failed while it was not held.
    pub assignee: Option<String>,
    /// The VM of the holder.
    pub vm: Option<VmId>,
    pub result: Option<Object>,
    pub at: Timestamp,
}

impl Ticket {
    /// Whether the ticket can be claimed now: pending, all dependencies completed, and no time to wait for.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Pending { .. }) && self.blockers.total == 0 && self.wait.is_over(now)
    }

    /// Whether the ticket is neither completed nor failed.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Pending { .. } | State::InProgress(_))
    }

    pub fn status(&self) -> TicketStatus {
        match self.state {
            State::Pending { .. } => TicketStatus::Pending,
            State::InProgress(_) => TicketStatus::InProgress,
            State::Completed(_) => TicketStatus::Completed,
            State::Failed(_) => TicketStatus::Failed,
        }
    }

    /// The current holder, or the holder that finished the ticket.
    pub fn assignee(&self) -> Option<&str> {
        match &self.state {
            State::Pending { .. } => None,
            State::InProgress(holder) => Some(&holder.assignee),
            State::Completed(finish) | State::Failed(finish) => finish.assignee.as_deref(),
        }
    }

    /// The VM of the current holder, or of the holder that finished the ticket.
    pub fn vm(&self) -> Option<VmId> {
        match &self.state {
            State::Pending { .. } => None,
            State::InProgress(holder) => holder.vm,
            State::Completed(finish) | State::Failed(finish) => finish.vm,
        }
    }

    pub fn finish(&self) -> Option<&Finish> {
        match &self.state {
            State::Completed(finish) | State::Failed(finish) => Some(finish),
            State::Pending { .. } | State::InProgress(_) => None,
        }
    }

    /// The ticket with a wait that is over by `now` recorded as passed.
    pub(crate) fn with_elapsed_wait(&self, now: Timestamp) -> Self {
        let wait = match self.wait {
            Wait::Until(at) if at <= now => Wait::Passed(at),
            wait => wait,
        };
        Self { wait, ..self.clone() }
    }
}

impl Wait {
    /// The wait for a requested time.
    pub fn until(at: Option<Timestamp>, now: Timestamp) -> Self {
        match at {
            None => Self::None,
            Some(at) if at <= now => Self::Passed(at),
            Some(at) => Self::Until(at),
        }
    }

    /// Whether there is no time to wait for.
    pub fn is_over(self, now: Timestamp) -> bool {
        !matches!(self, Self::Until(at) if at > now)
    }

    /// The time, passed or not.
    pub const fn time(self) -> Option<Timestamp> {
        match self {
            Self::None => None,
            Self::Until(at) | Self::Passed(at) => Some(at),
        }
    }
}

impl Lease {
    pub fn from(now: Timestamp, length: Duration) -> Self {
        Self { length, expires_at: now.checked_add(length).unwrap_or(Timestamp::MAX) }
    }
}
