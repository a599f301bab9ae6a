//! Control of one running VMM.

use std::os::fd::OwnedFd;

use async_trait::async_trait;

use crate::Error;

/// The reason that a VMM reported for its end. A VMM that crashed reports none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmmEnd {
    /// The guest powered off or reset.
    Poweroff,
    Panic,
    /// The host requested it.
    HostRequest,
}

/// What a guest read from and wrote to its private disk layer since its VMM was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskTraffic {
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
    /// Requests to write caches to the disk.
    pub flushes: u64,
}

/// A running VMM.
#[async_trait]
#[warn(missing_docs)]
pub trait Machine: Send + Sync {
    /// Stops the processors.
    async fn pause(&self) -> Result<(), Error>;

    /// Starts the processors.
    async fn resume(&self) -> Result<(), Error>;

    /// Whether the processors run.
    async fn is_running(&self) -> Result<bool, Error>;

    /// Reads the counters of the private disk layer.
    async fn disk_traffic(&self) -> Result<DiskTraffic, Error>;

    /// Saves the device state, without memory, into the file `state`, which is open for writing only. The processors must
    /// be stopped, and stay so.
    async fn save_devices(&self, state: OwnedFd) -> Result<(), Error>;

    /// Saves the device state, without memory, into `state`, and ends the VMM. Memory and disk are already files.
    async fn save(&self, state: OwnedFd) -> Result<(), Error>;

    /// Waits until the monitor is closed, and returns the reason that the VMM reported.
    async fn ended(&self) -> Option<VmmEnd>;
}
