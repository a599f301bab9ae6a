//! A ticket as the rules see it.

use std::time::Duration;

use jiff::Timestamp;
use skep_api::{
    TicketId, VmId,
    tickets::{Blocker, Object, TicketStatus},
};

/// What decides about a ticket's next step.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticket {
    /// Its id.
    pub id: TicketId,
    /// The number of its latest attempt; 0 before the first claim.
    pub attempt: u32,
    /// Attempts that ended by themselves since it was made or retried.
    pub counted: u32,
    /// How many of these it may have.
    pub max_attempts: u32,
    /// When it may be claimed at the earliest.
    pub wait: Wait,
    /// The dependencies that are not completed.
    pub blockers: Blockers,
    /// When its latest attempt began.
    pub started_at: Option<Timestamp>,
    /// Where it stands.
    pub state: State,
}

/// When a ticket may be claimed at the earliest. That a time has passed is said once, by whoever saw it pass; then a clock
/// that is set back takes nothing away again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// At once.
    None,
    /// Not before then; nobody has seen it pass.
    Until(Timestamp),
    /// That time has passed.
    Passed(Timestamp),
}

/// The dependencies that are not completed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers {
    /// How many.
    pub total: u32,
    /// The first of them, as far as somebody asked.
    pub named: Vec<Blocker>,
}

/// Where a ticket stands, with what only then is so.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Nobody holds it.
    Pending {
        /// Who held it until the lease ran out, where nobody claimed it since.
        lapsed: Option<Lapsed>,
    },
    /// Somebody holds it.
    InProgress(Holder),
    /// It is done.
    Completed(Finish),
    /// It was given up.
    Failed(Finish),
}

/// Whoever holds a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub assignee: String,
    /// Its VM.
    pub vm: Option<VmId>,
    /// For how long.
    pub lease: Lease,
}

/// How long a claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// From one beat on.
    pub length: Duration,
    /// By the wall clock, for people. What ends a lease is a timer that no clock moves.
    pub expires_at: Timestamp,
}

/// Whoever held a ticket until its attempt ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lapsed {
    /// Its name.
    pub assignee: String,
    /// Its VM.
    pub vm: Option<VmId>,
}

/// How a ticket was finished.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// By whom; nobody where it was given up before anybody held it.
    pub assignee: Option<String>,
    /// By which VM.
    pub vm: Option<VmId>,
    /// What came out of it.
    pub result: Option<Object>,
    /// When.
    pub at: Timestamp,
}

impl Ticket {
    /// Whether it can be claimed now: pending, every dependency completed, and its time has come.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Pending { .. }) && self.blockers.total == 0 && self.wait.is_over(now)
    }

    /// The word for where it stands.
    pub fn status(&self) -> TicketStatus {
        match self.state {
            State::Pending { .. } => TicketStatus::Pending,
            State::InProgress(_) => TicketStatus::InProgress,
            State::Completed(_) => TicketStatus::Completed,
            State::Failed(_) => TicketStatus::Failed,
        }
    }

    /// Who holds or finished it.
    pub fn assignee(&self) -> Option<&str> {
        match &self.state {
            State::Pending { .. } => None,
            State::InProgress(holder) => Some(&holder.assignee),
            State::Completed(finish) | State::Failed(finish) => finish.assignee.as_deref(),
        }
    }

    /// The VM that holds it or finished it.
    pub fn vm(&self) -> Option<VmId> {
        match &self.state {
            State::Pending { .. } => None,
            State::InProgress(holder) => holder.vm,
            State::Completed(finish) | State::Failed(finish) => finish.vm,
        }
    }

    /// How it was finished.
    pub fn finish(&self) -> Option<&Finish> {
        match &self.state {
            State::Completed(finish) | State::Failed(finish) => Some(finish),
            State::Pending { .. } | State::InProgress(_) => None,
        }
    }

    /// The same, seen at a moment at which its time has come.
    pub(crate) fn seen(&self, now: Timestamp) -> Self {
        let wait = match self.wait {
            Wait::Until(at) if at <= now => Wait::Passed(at),
            wait => wait,
        };
        Self { wait, ..self.clone() }
    }
}

impl Wait {
    /// A time as it is asked for now.
    pub fn until(at: Option<Timestamp>, now: Timestamp) -> Self {
        match at {
            None => Self::None,
            Some(at) if at <= now => Self::Passed(at),
            Some(at) => Self::Until(at),
        }
    }

    /// Whether there is nothing to wait for.
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
    /// A lease from now on.
    pub fn from(now: Timestamp, length: Duration) -> Self {
        Self { length, expires_at: now.checked_add(length).unwrap_or(Timestamp::MAX) }
    }
}
