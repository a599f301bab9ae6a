//! The root file system of a jailed process: /usr of the host, read-only, a private /proc and few devices.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::Path,
};

use rustix::{
    fs::{CWD, Dev, FileType, Mode, major, makedev, minor, mknodat},
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount,
        unmount,
    },
    process::{chdir, pivot_root, umask},
};

use super::{StageError, Step};
use crate::{Jail, ProcessSpec};

/// Mount point of the new root. A folder that every machine has; its content is hidden in this mount namespace only.
const NEW_ROOT: &str = "/run";

/// Builds the new root, changes into it and unmounts the old one.
pub(super) fn build(order: &ProcessSpec, jail: &Jail) -> Result<(), StageError> {
    // First, so that no later mount propagates to the host.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).step("private mounts")?;
    let devices =
        jail.devices.iter().map(|path| Node::copy_of(path, order)).collect::<Result<Vec<_>, _>>()?;
    umask(Mode::empty());
    mount(
        "tmpfs",
        NEW_ROOT,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        c"mode=0755,size=64k,nr_inodes=64",
    )
    .step("new root")?;
    chdir(NEW_ROOT).step("new root")?;
    mount_programs()?;
    mount_proc()?;
    fs::create_dir("dev").step("dev")?;
    for node in Node::standard().iter().chain(&devices) {
        node.create()?;
    }
    // The old root is stacked on top of the new one and then unmounted (pivot_root(2), notes).
    pivot_root(".", ".").step("change of root")?;
    unmount(".", UnmountFlags::DETACH).step("old root")?;
    chdir("/").step("new root")?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    mount_remount("/", flags, c"").step("read-only root")
}

fn mount_programs() -> Result<(), StageError> {
    fs::create_dir("usr").step("usr")?;
    mount_bind("/usr", "usr").step("programs")?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount_remount("usr", flags, c"").step("read-only programs")?;
    for name in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{name}"), name).step(name)?;
    }
    Ok(())
}

/// Mounts a /proc that shows only the process's own namespace, without kernel settings.
fn mount_proc() -> Result<(), StageError> {
    fs::create_dir("proc").step("proc")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "proc", "proc", flags, c"subset=pid,hidepid=invisible").step("proc")
}

/// A device node to create below `dev`.
struct Node {
    name: String,
    device: Dev,
    mode: u32,
    owner: Option<(u32, u32)>,
}

impl Node {
    fn standard() -> [Self; 3] {
        [("null", 3), ("zero", 5), ("urandom", 9)].map(|(name, minor)| Self {
            name: name.to_owned(),
            device: makedev(1, minor),
            mode: 0o666,
            owner: None,
        })
    }

    /// A copy of a host device node, accessible to the specified user only.
    fn copy_of(path: &Path, order: &ProcessSpec) -> Result<Self, StageError> {
        let found = fs::metadata(path).step(&path.display().to_string())?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| StageError(format!("{} is no device", path.display())))?;
        Ok(Self {
            name: name.to_owned(),
            device: makedev(major(found.rdev()), minor(found.rdev())),
            mode: 0o600,
            owner: Some((order.uid, order.gid)),
        })
    }

    fn create(&self) -> Result<(), StageError> {
        let path = Path::new("dev").join(&self.name);
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(self.mode), self.device)
            .step(&self.name)?;
        match self.owner {
            Some((uid, gid)) => chown(&path, Some(uid), Some(gid)).step(&self.name),
            None => Ok(()),
        }
    }
}
