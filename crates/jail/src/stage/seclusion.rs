//! Processes and scratch folders of its own, in the file system of this machine.

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{Resource, Rlimit, setrlimit},
};

use super::{Failed, Step};
use crate::Seclusion;

/// Makes what only this process and those that it starts see. To be called as the first process of new namespaces.
pub(super) fn enter(seclusion: &Seclusion) -> Result<(), Failed> {
    // Nothing that is mounted from here on reaches the machine; what the machine mounts and unmounts reaches us.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).step("own mounts")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("proc", "/proc", "proc", flags | MountFlags::NOEXEC, c"").step("proc")?;
    for folder in &seclusion.scratch {
        mount("tmpfs", folder, "tmpfs", flags, c"mode=1777").step(&format!("own {}", folder.display()))?;
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).step("no core dumps")
}
