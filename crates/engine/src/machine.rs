//! A VMM that is driven.

use std::os::fd::OwnedFd;

use async_trait::async_trait;

use crate::Error;

/// Why a VMM stopped by its own word. A VMM that said nothing died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmmEnd {
    /// The guest powered itself off, or reset itself.
    Poweroff,
    /// The guest's kernel panicked.
    Panic,
    /// The host asked it.
    Asked,
}

/// One VMM, by its monitor.
#[async_trait]
#[warn(missing_docs)]
pub trait Machine: Send + Sync {
    /// Stops the processors.
    async fn pause(&self) -> Result<(), Error>;

    /// Lets the processors run.
    async fn resume(&self) -> Result<(), Error>;

    /// Whether the processors run.
    async fn is_running(&self) -> Result<bool, Error>;

    /// Saves the device state, without memory, into `state`, and ends the VMM. Memory and disk stay as they are.
    async fn save(&self, state: OwnedFd) -> Result<(), Error>;

    /// Waits until the monitor is gone, and tells what the VMM said of its end.
    async fn ended(&self) -> Option<VmmEnd>;
}
