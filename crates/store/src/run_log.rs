//! What the commands of boots for tickets printed.

use skep_api::{AccountId, TicketId, VmId};

/// What is kept of one log at the least, where it is as long and the account has room: its last bytes.
pub const KEPT_LOG: u64 = 4 << 20;
/// What is kept of all logs of an account. Beyond it the oldest pieces go first.
pub const ACCOUNT_LOGS: u64 = 256 << 20;

/// Adds what the command of a VM printed. Nothing happens where the VM has no log any more. No event.
#[derive(Debug, Clone)]
pub struct AppendLog {
    /// Which VM.
    pub vm: VmId,
    /// Both outputs, in the order in which they came.
    pub bytes: Vec<u8>,
    /// How far the two outputs are read with that.
    pub position: LogPosition,
}

/// How far the two outputs of a command are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
}

/// Asks for a page of a log.
#[derive(Debug, Clone, Copy)]
pub struct ReadLog {
    /// Whose.
    pub account: AccountId,
    /// The VM that the caller's key is bound to: then only the ticket that this VM holds or held.
    pub by: Option<VmId>,
    /// Of which ticket; it may be deleted.
    pub ticket: TicketId,
    /// Of which attempt; the latest with a log unless given.
    pub attempt: Option<u32>,
    /// Of which VM.
    pub vm: Option<VmId>,
    /// Where the page begins. What is not kept any more is passed over.
    pub offset: u64,
    /// The most bytes that the page holds; at least 1.
    pub limit: usize,
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The attempt.
    pub attempt: u32,
    /// Its VM.
    pub vm: VmId,
    /// Where the bytes begin.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The first byte that is kept.
    pub kept_from: u64,
    /// Bytes that came so far, kept or not.
    pub size: u64,
    /// Whether more may come.
    pub running: bool,
}
