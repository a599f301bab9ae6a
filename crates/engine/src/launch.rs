//! What a VMM is started with, independent of the engine. Used in the keeper.

use std::{num::NonZero, os::fd::OwnedFd, path::PathBuf};

use crate::Error;

/// The number of the first descriptor that a VMM inherits. The others follow in order.
pub const FIRST_FD: i32 = 3;

/// The numbers of the descriptors in a VMM by which a snapshot of it is made. The VMM keeps them open.
pub mod inherited {
    use super::FIRST_FD;

    pub const RAM: i32 = FIRST_FD + 4;
    pub const KERNEL: i32 = RAM + 1;
    pub const INITRD: i32 = RAM + 2;
    /// Only in the VMM of a guest that continues a snapshot, like [`PAGES`].
    pub const DELTA: i32 = RAM + 6;
    pub const PAGES: i32 = DELTA + 1;
}

/// The descriptors of a VMM. It gets no host paths.
#[derive(Debug)]
pub struct Descriptors {
    /// Listening stream socket of the monitor.
    pub monitor: OwnedFd,
    /// Listening stream socket of the guest agent's channel.
    pub agent: OwnedFd,
    /// Listening stream socket of the serial console.
    pub console: OwnedFd,
    /// The tap device, created with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`.
    pub tap: OwnedFd,
    /// Guest memory: sealed and mapped private for a restore, mapped shared for a bake.
    pub ram: OwnedFd,
    /// The kernel, read-only.
    pub kernel: OwnedFd,
    /// The initial ramdisk, read-only.
    pub initrd: OwnedFd,
    /// The shared root file system, read-only.
    pub root: OwnedFd,
    /// The private disk layer, read-write.
    pub layer: OwnedFd,
    /// What a snapshot changed in the guest memory. Only for a restore.
    pub delta: Option<Delta>,
}

/// Pages of guest memory that a snapshot changed, as sealed memory files that all its VMs share.
#[derive(Debug)]
pub struct Delta {
    /// The pages, at the offsets that they have in the guest memory.
    pub data: OwnedFd,
    /// Which pages: pairs of offsets in bytes, begin and end, as numbers of 64 bits in the byte order of the machine.
    pub pages: OwnedFd,
}

#[derive(Debug)]
pub struct LaunchSpec {
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// MAC address of the guest's network device.
    pub mac: [u8; 6],
    pub disk_limits: DiskLimits,
    pub purpose: Purpose,
    pub descriptors: Descriptors,
}

/// The speed that the disks of one VM have together, for reads and writes. After a second without any, a VM may do those
/// of one second at once. Saved states do not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// Per second. `None`: unlimited.
    pub bytes: Option<NonZero<u64>>,
    /// Per second. `None`: unlimited.
    pub operations: Option<NonZero<u64>>,
}

/// Why a VMM is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Boots the kernel. Memory is mapped shared, so that it can be saved.
    Bake,
    /// Waits for a saved state. Memory is mapped private.
    Restore,
}

/// The command line of a VMM inside its jail.
#[derive(Debug)]
pub struct VmmCommand {
    /// The program, below /usr.
    pub program: PathBuf,
    /// Without the program's name.
    pub arguments: Vec<String>,
    /// The complete environment.
    pub environment: Vec<(String, String)>,
    /// The inherited descriptors, from [`FIRST_FD`] upward.
    pub descriptors: Vec<OwnedFd>,
    pub needs_kvm: bool,
}

/// Builds the command line of VMMs. The jail runs it.
#[warn(missing_docs)]
pub trait Launcher: Send + Sync {
    /// The command line of one VMM.
    ///
    /// # Errors
    /// The limit of open descriptors is reached, or the program is missing or has another version than the one that
    /// templates are restored by.
    fn command(&self, order: LaunchSpec) -> Result<VmmCommand, Error>;

    /// Checks that the program that is installed is of the version that templates are restored by. Blocks.
    ///
    /// # Errors
    /// It is missing, or an update replaced it by another version.
    fn check_version(&self) -> Result<(), Error>;

    /// The maximum memory of a VMM in addition to its guest's, in MiB. The cgroup limit of a VM and its share of the
    /// machine's capacity are the sum of both.
    fn overhead_mb(&self) -> u64;
}
