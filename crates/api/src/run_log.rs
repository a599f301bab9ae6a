//! Logs of boot commands that work on a ticket.

use serde::{Deserialize, Serialize};

use crate::{TicketId, VmId, exec::OutputEncoding};

/// The last event of a followed log: the attempt, and the position up to which its log was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEnd {
    /// The number of the attempt.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// The size of the whole output so far in bytes, including output that is no longer stored.
    #[cfg_attr(feature = "openapi", schema(example = 12))]
    pub size_bytes: u64,
}

/// A page of an attempt's log: the output of the boot command, with standard output and standard error in order of
/// arrival.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketLog {
    /// The id of the ticket.
    pub ticket: TicketId,
    /// The number of the attempt.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// The VM that ran the command.
    pub vm: VmId,
    /// The position of `output` in bytes. It is greater than requested if that part is no longer stored.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub offset: u64,
    /// The position of the next page, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 12))]
    pub next_offset: u64,
    /// The size of the whole output so far in bytes, including output that is no longer stored.
    #[cfg_attr(feature = "openapi", schema(example = 12))]
    pub size_bytes: u64,
    /// The output, in the encoding given by `encoding`.
    #[cfg_attr(feature = "openapi", schema(example = "hello world\n"))]
    pub output: String,
    /// The encoding of `output`.
    pub encoding: OutputEncoding,
    /// Whether the command is still running.
    pub running: bool,
    /// Whether more output is available at `next_offset` now.
    pub truncated: bool,
}
