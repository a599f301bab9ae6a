//! Virtual machine engines: what starts a VMM (in the keeper) and what drives it (in the server).
//!
//! Nothing above [`Engine`] knows which one it is. QEMU is the only one today.

pub mod error;
pub mod launch;
pub mod machine;
pub mod qemu;
pub mod select;
pub mod template;

use std::{os::fd::OwnedFd, path::Path};

use async_trait::async_trait;
use skep_api::swarm::EngineReport;
use tokio::net::UnixStream;

pub use error::Error;
pub use launch::{Descriptors, LaunchOrder, Launcher, Purpose, VmmCommand};
pub use machine::{Machine, VmmEnd};

/// What drives a VMM over its monitor. Used in the server, and by a bake.
#[async_trait]
#[warn(missing_docs)]
pub trait Driver: Send + Sync {
    /// Loads a saved device state into a VMM that waits for one, and lets its processors run.
    ///
    /// # Errors
    /// The VMM refused the state, ended, or did not answer in time.
    async fn restore(&self, monitor: UnixStream, state: OwnedFd) -> Result<Box<dyn Machine>, Error>;

    /// Takes over a VMM that runs.
    ///
    /// # Errors
    /// The VMM ended or did not answer in time.
    async fn attach(&self, monitor: UnixStream) -> Result<Box<dyn Machine>, Error>;
}

/// One engine, both halves.
#[warn(missing_docs)]
pub trait Engine: Launcher + Driver {
    /// Its name, how it accelerates and why.
    fn report(&self) -> &EngineReport;
}

/// The engine of this machine.
///
/// # Errors
/// No engine is installed, or the one that is does not answer.
pub fn select() -> Result<Box<dyn Engine>, Error> {
    let acceleration = select::measure(Path::new("/dev/kvm"));
    Ok(Box::new(qemu::Qemu::find(&acceleration)?))
}
