//! Errors of the ticket rules.

use jiff::Timestamp;
use skep_api::{
    ErrorCode, ErrorKind, Failure, TicketId,
    tickets::{Blocker, TicketStatus},
};

use crate::limits::MAX_NAMED_TICKETS;

/// Why a command is refused, with the value that it concerns and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "`{id}` is held by {holder} (attempt {attempt}, until {until:.3}); claim another one, or wait until it is released"
    )]
    HeldBy {
        id: TicketId,
        holder: String,
        attempt: u32,
        /// When the lease expires, unless it is renewed.
        until: Timestamp,
    },
    #[error("`{id}` is blocked by {}; they must be completed first, or be taken out of its `dependencies`", listed(*.total, .named))]
    Blocked {
        id: TicketId,
        /// The number of open dependencies.
        total: u32,
        /// The first of them.
        named: Vec<Blocker>,
    },
    #[error("`{id}` cannot be claimed before {until:.3}; claim it then, or change its `not_before`")]
    NotYet { id: TicketId, until: Timestamp },
    /// A later attempt has begun.
    #[error("attempt {attempt} was superseded by attempt {current} ({holder}); stop working on `{id}`")]
    Superseded {
        id: TicketId,
        /// The attempt of the caller.
        attempt: u32,
        /// The latest attempt.
        current: u32,
        /// The holder of the latest attempt.
        holder: String,
    },
    /// The attempt number is greater than the latest one.
    #[error(
        "attempt {attempt} of `{id}` was never begun: the latest one is {current}; claim the ticket to begin one"
    )]
    NeverBegun {
        id: TicketId,
        /// The attempt of the caller.
        attempt: u32,
        /// The latest attempt.
        current: u32,
    },
    /// The attempt has ended, and the ticket was not claimed again.
    #[error(
        "nobody holds `{id}`: attempt {attempt} is over; finish it late with `attempt: {attempt}`, or claim the ticket again"
    )]
    LeaseLost {
        id: TicketId,
        /// The latest attempt.
        attempt: u32,
    },
    /// The status does not permit the command.
    #[error("`{id}` is {status}: it cannot {what}; {way_out}")]
    State {
        id: TicketId,
        status: TicketStatus,
        /// The refused action, as the end of "it cannot".
        what: &'static str,
        /// What to do instead.
        way_out: &'static str,
    },
    #[error("these dependencies would form a cycle: {}; leave one of them out", .path.join(" → "))]
    Cycle {
        /// The tickets of the cycle; the first is repeated at the end.
        path: Vec<String>,
    },
    #[error("{0}")]
    Value(String),
    #[error("{0}")]
    Missing(String),
    #[error(
        "`{field}` has {size} bytes; its limit is {limit}: send less, or keep it in a file and name that here"
    )]
    TooLarge {
        field: String,
        /// In bytes.
        size: usize,
        /// In bytes.
        limit: usize,
    },
    /// A `ref` that no ticket of the batch has.
    #[error(
        "`{field}` names `ref:{reference}`, which no ticket of this batch has as its `ref`; give one of them that `ref`"
    )]
    UnknownRef {
        /// The field with the reference.
        field: String,
        reference: String,
    },
}

impl Error {
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

    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(refusal: Error) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}

/// Lists blockers for a message: up to [`MAX_NAMED_TICKETS`] with id and status, and the number of the others.
pub(crate) fn listed(total: u32, named: &[Blocker]) -> String {
    let list = named.iter().take(MAX_NAMED_TICKETS).map(|one| format!("{} ({})", one.id, one.status));
    let list = list.collect::<Vec<_>>().join(", ");
    let shown = named.len().min(MAX_NAMED_TICKETS);
    match usize::try_from(total).unwrap_or(usize::MAX).saturating_sub(shown) {
        0 => list,
        more if shown == 0 => format!("{more} tickets"),
        more => format!("{list} and {more} more"),
    }
}
