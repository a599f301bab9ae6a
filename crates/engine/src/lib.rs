//! Virtual machine engines. The keeper starts a VMM with a [`Launcher`]; the server controls it with a [`Driver`].
//!
//! Code that uses [`Engine`] does not depend on a particular one. QEMU is the only implementation.

pub mod acceleration;
pub mod error;
pub mod launch;
pub mod machine;
pub mod qemu;

use std::{os::fd::OwnedFd, path::Path};

use async_trait::async_trait;
use skep_api::swarm::EngineReport;
use tokio::net::UnixStream;

pub use error::Error;
pub use launch::{Delta, Descriptors, DiskLimits, LaunchSpec, Launcher, Purpose, VmmCommand};
pub use machine::{DiskTraffic, Machine, VmmEnd};

/// Controls VMMs over their monitors. Used in the server and when a template is baked.
#[async_trait]
#[warn(missing_docs)]
pub trait Driver: Send + Sync {
    /// Loads a saved device state into a VMM that was launched for it, and starts its processors. The state is that of a
    /// bake or of a snapshot.
    ///
    /// # Errors
    /// The VMM refused the state, ended, or did not answer in time.
    async fn restore(&self, monitor: UnixStream, state: OwnedFd) -> Result<Box<dyn Machine>, Error>;

    /// Takes control of a running VMM.
    ///
    /// # Errors
    /// The VMM ended or did not answer in time.
    async fn attach(&self, monitor: UnixStream) -> Result<Box<dyn Machine>, Error>;
}

/// An engine: a launcher and its driver.
#[warn(missing_docs)]
pub trait Engine: Launcher {
    /// Controls the VMMs that it launches.
    fn driver(&self) -> &dyn Driver;

    /// Its name, its acceleration and the reason for that.
    fn report(&self) -> &EngineReport;

    /// The rate of the time stamp counter that an emulated guest is booted with, in kHz. It is saved with the guest's
    /// memory. `None` with hardware acceleration, or if it could not be measured.
    fn tsc_khz(&self) -> Option<u64>;

    /// The machine and its devices, without what differs between VMs: a saved state only loads where these words are the
    /// same.
    fn devices(&self) -> String;
}

/// The part of an engine's name that saved states depend on: program and upstream version. The distribution's revision
/// is left out, since its rebuilds and security updates keep the format of saved states.
pub fn upstream_version(name: &str) -> &str {
    name.split_once(" (").map_or(name, |(upstream, _)| upstream)
}

/// The engine for this machine.
///
/// # Errors
/// No working engine is installed.
pub fn select() -> Result<Box<dyn Engine>, Error> {
    let acceleration = acceleration::measure(Path::new("/dev/kvm"));
    Ok(Box::new(qemu::Qemu::find(&acceleration)?.with_preload()?))
}
