//! Who is told how commits go.

use std::{fmt, time::Duration};

/// How one commit went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// From its beginning until it was on the disk, or failed; its commands included.
    pub took: Duration,
    /// Commands that it carried out together.
    pub commands: usize,
    /// Whether it is on the disk.
    pub succeeded: bool,
}

/// Is told of every commit, on the thread that writes: it must not wait.
#[warn(missing_docs)]
pub trait CommitObserver: fmt::Debug + Send + Sync {
    /// A commit has ended.
    fn committed(&self, commit: Commit);
}

/// Whoever does not want to know.
impl CommitObserver for () {
    fn committed(&self, _: Commit) {}
}
