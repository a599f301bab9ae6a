//! What the command of a boot for a ticket printed.

use serde::{Deserialize, Serialize};

use crate::{TicketId, VmId, exec::OutputEncoding};

/// Where the log of an attempt goes on, as the last event of a log that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEnd {
    /// The attempt.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// Bytes that came, kept or not.
    #[cfg_attr(feature = "openapi", schema(example = 12))]
    pub size_bytes: u64,
}

/// A page of the log of an attempt: what the command of its boot printed, both outputs in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketLog {
    /// The ticket.
    pub ticket: TicketId,
    /// The attempt.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// The VM that the command ran in.
    pub vm: VmId,
    /// Where `output` begins. It is later than asked for where what came before is not kept any more.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub offset: u64,
    /// Where the next page begins.
    #[cfg_attr(feature = "openapi", schema(example = 12))]
    pub next_offset: u64,
    /// Bytes that came so far, kept or not.
    #[cfg_attr(feature = "openapi", schema(example = 12))]
    pub size_bytes: u64,
    /// What was printed, as `encoding` says.
    #[cfg_attr(feature = "openapi", schema(example = "hello world\n"))]
    pub output: String,
    /// How `output` is written.
    pub encoding: OutputEncoding,
    /// Whether the command runs.
    pub running: bool,
    /// Whether there is more to read at `next_offset` now.
    pub truncated: bool,
}
