//! Private /proc, scratch folders and `noexec` mounts on the file system of the host.

use std::{ffi::CStr, io, path::PathBuf};

use rustix::{
    fs::CWD,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount,
        open_tree,
    },
    process::{Resource, Rlimit, setrlimit},
};

use super::{StageError, Step};
use crate::Seclusion;

/// Mounts what only this process and its children see. Must be called by pid 1 of new namespaces.
pub(super) fn enter(seclusion: &Seclusion) -> Result<(), StageError> {
    // Mounts made here do not propagate to the host; mounts and unmounts of the host propagate to here.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).step("own mounts")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("proc", "/proc", "proc", flags | MountFlags::NOEXEC, c"").step("proc")?;
    for folder in &seclusion.scratch {
        mount("tmpfs", folder, "tmpfs", flags, c"mode=1777").step(&format!("own {}", folder.display()))?;
    }
    if let Some(executable) = &seclusion.executable {
        restrict_execution(executable)?;
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).step("no core dumps")
}

/// Makes every mount `noexec`, except new bind mounts of these paths.
fn restrict_execution(executable: &[PathBuf]) -> Result<(), StageError> {
    let real: Vec<_> = executable.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let is_outermost = |path: &&PathBuf| !real.iter().any(|other| *path != other && path.starts_with(other));
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    // Copied before the flag is set, so that the copies do not have it.
    let mut copies = Vec::new();
    for path in real.iter().filter(is_outermost) {
        let copy = open_tree(CWD, path, flags).step(&format!("executable {}", path.display()))?;
        copies.push((copy, path));
    }
    match set_noexec(c"/") {
        // A kernel before Linux 5.12. It has no Landlock either, so only the user id protects the machine there.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(()),
        other => other.step("mounts without execution")?,
    }
    for (copy, path) in copies {
        move_mount(copy, c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .step(&format!("executable {}", path.display()))?;
    }
    Ok(())
}

/// Sets `noexec` on all mounts at and below a folder.
fn set_noexec(folder: &CStr) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_NOEXEC, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: folder and attributes outlive the call, and the kernel only reads them.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            folder.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
