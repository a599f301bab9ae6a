//! The network namespace, and its name below /run/netns, where `ip netns` finds it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::Error;

const FOLDER: &str = "/run/netns";

/// A namespace that goes with this value, until it is kept.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    kept: bool,
}

impl Namespace {
    /// Moves this thread into a new namespace and gives it a name.
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        fs::create_dir_all(FOLDER).map_err(Error::io(FOLDER))?;
        share_folder().map_err(Error::io(format!("shared mount of {FOLDER}")))?;
        let path = path(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists(name.to_owned()));
            }
            other => other.map_err(Error::io(path.display().to_string()))?,
        };
        // From here on its drop clears the name away.
        let namespace = Self { name: name.to_owned(), kept: false };
        // SAFETY: no CLONE_FILES among the flags: the descriptor table stays the one that `OwnedFd` knows.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(Error::io("new network namespace"))?;
        mount_bind("/proc/thread-self/ns/net", &path)
            .map_err(Error::io(format!("bind to {}", path.display())))?;
        Ok(namespace)
    }

    /// Moves this thread into a namespace that has the name already.
    pub(crate) fn enter(name: &str) -> Result<(), Error> {
        let path = path(name);
        let namespace = fs::File::open(&path).map_err(Error::io(path.display().to_string()))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(Error::io(format!("entry into {}", path.display())))
    }

    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.kept {
            // Half made, and whoever wanted it is told another error.
            let _ = unbind(&self.name);
        }
    }
}

/// Makes the folder a shared mount, as `ip netns add` does. Otherwise that one would bind the folder onto itself later,
/// and our name below it could not be removed any more. It stays: it is the machine's, not ours.
fn share_folder() -> io::Result<()> {
    // The lock that `ip netns add` takes too, until the descriptor closes.
    let folder = fs::File::open(FOLDER)?;
    flock(&folder, FlockOperation::LockExclusive)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match mount_change(FOLDER, shared) {
        // No mount point yet.
        Err(rustix::io::Errno::INVAL) => {
            mount_bind_recursive(FOLDER, FOLDER)?;
            Ok(mount_change(FOLDER, shared)?)
        }
        other => Ok(other?),
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Takes the name away; the namespace goes with its last process.
pub(crate) fn unbind(name: &str) -> Result<(), Error> {
    let path = path(name);
    match unmount(&path, UnmountFlags::DETACH) {
        // No such file, or a file that nothing is bound to.
        Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(Error::io(format!("unmount {}", path.display()))(error)),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path.display().to_string())(error))
        }
        _ => Ok(()),
    }
}

/// The settings of a new namespace are copied from the machine's, where another program may have switched forwarding on.
/// /proc/sys/net shows the settings of whoever opens it: this thread.
pub(crate) fn forbid_forwarding() -> Result<(), Error> {
    for (setting, value) in [
        ("ipv4/ip_forward", "0"),
        ("ipv4/conf/all/accept_redirects", "0"),
        ("ipv4/conf/all/rp_filter", "1"),
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
    ] {
        let path = Path::new("/proc/sys/net").join(setting);
        // A kernel without IPv6 has no such setting.
        if setting.starts_with("ipv6") && !path.exists() {
            continue;
        }
        let write = || OpenOptions::new().write(true).open(&path)?.write_all(value.as_bytes());
        write().map_err(Error::io(path.display().to_string()))?;
    }
    Ok(())
}
