//! Why a ticket's rules say no.

use jiff::Timestamp;
use skep_api::{
    ErrorCode, ErrorKind, Failure, TicketId,
    tickets::{Blocker, TicketStatus},
};

use crate::limits::NAMED;

/// A refusal, with the value that it is about and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody else holds it.
    #[error(
        "`{id}` is held by {holder} (attempt {attempt}, until {until:.3}); claim another one, or wait until it is released"
    )]
    HeldBy {
        /// Which ticket.
        id: TicketId,
        /// Who.
        holder: String,
        /// In which attempt.
        attempt: u32,
        /// When the lease runs out, unless it is renewed.
        until: Timestamp,
    },
    /// Dependencies are not completed.
    #[error("`{id}` is blocked by {}; they must be completed first, or be taken out of its `dependencies`", listed(*.total, .named))]
    Blocked {
        /// Which ticket.
        id: TicketId,
        /// By how many.
        total: u32,
        /// The first of them.
        named: Vec<Blocker>,
    },
    /// Its time has not come.
    #[error("`{id}` cannot be claimed before {until:.3}; come again then, or PATCH its `not_before`")]
    NotYet {
        /// Which ticket.
        id: TicketId,
        /// Until when.
        until: Timestamp,
    },
    /// Another attempt came after.
    #[error("attempt {attempt} was superseded by attempt {current} ({holder}); stop working on `{id}`")]
    Superseded {
        /// Which ticket.
        id: TicketId,
        /// The attempt of the caller.
        attempt: u32,
        /// The latest one.
        current: u32,
        /// Whose the latest one is or was.
        holder: String,
    },
    /// There never was such an attempt.
    #[error(
        "attempt {attempt} of `{id}` was never begun: the latest one is {current}; claim the ticket to begin one"
    )]
    NeverBegun {
        /// Which ticket.
        id: TicketId,
        /// The attempt of the caller.
        attempt: u32,
        /// The latest one.
        current: u32,
    },
    /// The attempt is over, and nobody claimed since.
    #[error(
        "nobody holds `{id}`: attempt {attempt} is over; finish it late with `attempt: {attempt}`, or claim the ticket again"
    )]
    LeaseLost {
        /// Which ticket.
        id: TicketId,
        /// The latest attempt.
        attempt: u32,
    },
    /// The status does not allow it.
    #[error("`{id}` is {status}: it cannot {what}; {way_out}")]
    State {
        /// Which ticket.
        id: TicketId,
        /// Where it stands.
        status: TicketStatus,
        /// What was asked.
        what: &'static str,
        /// What to do instead.
        way_out: &'static str,
    },
    /// It would wait for itself.
    #[error("these dependencies would form a cycle: {}; leave one of them out", .path.join(" → "))]
    Cycle {
        /// The way round, from a ticket to itself.
        path: Vec<String>,
    },
    /// A value outside what it may be.
    #[error("{0}")]
    Value(String),
    /// A value that is missing.
    #[error("{0}")]
    Missing(String),
    /// A value over its limit.
    #[error(
        "`{field}` has {size} bytes; its limit is {limit}: send less, or keep it in a file and name that here"
    )]
    TooLarge {
        /// Which field.
        field: String,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A `ref` that the batch does not have.
    #[error(
        "`{field}` names `ref:{reference}`, which no ticket of this batch has as its `ref`; give one of them that `ref`"
    )]
    UnknownRef {
        /// Where it stands.
        field: String,
        /// The name.
        reference: String,
    },
}

impl Refusal {
    /// The stable name of the refusal.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::HeldBy { .. } => ErrorCode::ClaimLost,
            Self::Blocked { .. } => ErrorCode::Blocked,
            Self::NotYet { .. } => ErrorCode::NotYet,
            Self::Superseded { .. } | Self::NeverBegun { .. } => ErrorCode::Superseded,
            Self::LeaseLost { .. } => ErrorCode::LeaseLost,
            Self::State { .. } => ErrorCode::TicketState,
            Self::Cycle { .. } => ErrorCode::Cycle,
            Self::Value(_) => ErrorCode::InvalidValue,
            Self::Missing(_) => ErrorCode::MissingParameter,
            Self::TooLarge { .. } => ErrorCode::FieldTooLarge,
            Self::UnknownRef { .. } => ErrorCode::UnknownDependency,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}

/// Blockers as a text, a few of them by name.
pub(crate) fn listed(total: u32, named: &[Blocker]) -> String {
    let words = named.iter().take(NAMED).map(|one| format!("{} ({})", one.id, one.status));
    let words = words.collect::<Vec<_>>().join(", ");
    let shown = named.len().min(NAMED);
    match usize::try_from(total).unwrap_or(usize::MAX).saturating_sub(shown) {
        0 => words,
        more if shown == 0 => format!("{more} tickets"),
        more => format!("{words} and {more} more"),
    }
}
