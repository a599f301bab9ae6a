//! What a VMM is started with. Used in the keeper; nothing here knows which engine it is.

use std::{os::fd::OwnedFd, path::PathBuf};

/// The number of the first descriptor that a VMM inherits; the others follow in order.
pub const FIRST_FD: i32 = 3;

/// The descriptors of a VMM. It gets no path of the machine.
#[derive(Debug)]
pub struct Descriptors {
    /// Listening stream socket of the monitor.
    pub monitor: OwnedFd,
    /// Listening stream socket of the guest agent's channel.
    pub agent: OwnedFd,
    /// Listening stream socket of the serial console.
    pub console: OwnedFd,
    /// The tap, made with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`.
    pub tap: OwnedFd,
    /// Guest memory: sealed and mapped private at a restore, shared at a bake.
    pub ram: OwnedFd,
    /// The kernel, read-only.
    pub kernel: OwnedFd,
    /// The initial ramdisk, read-only.
    pub initrd: OwnedFd,
    /// The shared root file system, read-only.
    pub root: OwnedFd,
    /// The private disk layer, read-write.
    pub layer: OwnedFd,
}

/// One VMM to start.
#[derive(Debug)]
pub struct LaunchOrder {
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// The guest's hardware address in the device.
    pub mac: [u8; 6],
    /// Whether it boots the kernel to be saved, or waits for a saved state.
    pub purpose: Purpose,
    /// What it inherits.
    pub descriptors: Descriptors,
}

/// Why a VMM is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Boots the kernel; memory is shared, to be saved.
    Bake,
    /// Waits for a saved state; memory is private.
    Restore,
}

/// The command of a VMM inside its jail.
#[derive(Debug)]
pub struct VmmCommand {
    /// The program, below /usr.
    pub program: PathBuf,
    /// Its arguments without the program's name.
    pub arguments: Vec<String>,
    /// What it inherits, from [`FIRST_FD`] upward.
    pub descriptors: Vec<OwnedFd>,
    /// Whether it needs /dev/kvm.
    pub needs_kvm: bool,
}

/// What starts a VMM. It only writes the command: the jail runs it.
#[warn(missing_docs)]
pub trait Launcher: Send + Sync {
    /// The command of one VMM.
    fn command(&self, order: LaunchOrder) -> VmmCommand;

    /// The most memory that a VMM takes besides its guest's, in MiB. The limit of a VM's control group and the budget of
    /// the machine are both the guest's memory and this.
    fn overhead_mb(&self) -> u64;
}
