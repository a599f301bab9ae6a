//! Observation of the store's commits, for metrics.

use std::{fmt, time::Duration};

/// Outcome and duration of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Time from the start of the transaction until it was durable or failed, including its commands.
    pub took: Duration,
    /// Number of commands in the transaction.
    pub commands: usize,
    /// Whether the commit is durable.
    pub succeeded: bool,
}

/// Receives every commit, on the writer thread: implementations must not block.
#[warn(missing_docs)]
pub trait CommitObserver: fmt::Debug + Send + Sync {
    /// Called after each commit, successful or not.
    fn committed(&self, commit: Commit);
}

/// Ignores commits.
impl CommitObserver for () {
    fn committed(&self, _: Commit) {}
}
