//! Output of the commands that VMs were booted with for a ticket.

use skep_api::{AccountId, TicketId, VmId};

/// Bytes at the end of each log that are kept at least, while the account is within [`MAX_ACCOUNT_LOG_BYTES`].
pub const MIN_LOG_BYTES: u64 = 4 << 20;
/// Bytes kept of all logs of an account. Beyond that the oldest chunks are deleted first.
pub const MAX_ACCOUNT_LOG_BYTES: u64 = 256 << 20;

/// Appends output of a VM's command to its log. Does nothing if the VM no longer has a log. Writes no event.
#[derive(Debug, Clone)]
pub struct AppendLog {
    pub vm: VmId,
    /// Standard output and standard error, interleaved in order of arrival.
    pub bytes: Vec<u8>,
    /// Position after these bytes.
    pub position: LogPosition,
}

/// How far the two output streams of a command have been read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
}

/// Reads part of a log.
#[derive(Debug, Clone, Copy)]
pub struct ReadLog {
    pub account: AccountId,
    /// The VM that the caller's key is bound to; restricts the query to tickets that this VM holds or held.
    pub caller_vm: Option<VmId>,
    /// May be deleted.
    pub ticket: TicketId,
    /// `None` selects the latest attempt that has a log.
    pub attempt: Option<u32>,
    pub vm: Option<VmId>,
    /// First byte to read; moved forward to the first byte that is still kept.
    pub offset: u64,
    /// Maximum number of bytes; at least 1.
    pub limit: usize,
}

/// Part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    pub attempt: u32,
    pub vm: VmId,
    /// Position of the first of `bytes` in the log.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Position of the first byte that is still kept.
    pub kept_from: u64,
    /// Bytes written so far, kept or not.
    pub size: u64,
    /// Whether the command may still print more.
    pub running: bool,
}
