//! The network namespace, with a name below /run/netns for `ip netns`.

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

/// A new namespace, which is removed on drop unless `persist` was called.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    persistent: bool,
}

impl Namespace {
    /// Moves this thread into a new, named namespace.
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        fs::create_dir_all(FOLDER).map_err(Error::io(FOLDER))?;
        share_folder().map_err(Error::io(format!("shared mount of {FOLDER}")))?;
        let path = path(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::NamespaceExists(name.to_owned()));
            }
            other => other.map_err(Error::io(path.display().to_string()))?,
        };
        // From here on its drop removes the name.
        let namespace = Self { name: name.to_owned(), persistent: false };
        // SAFETY: the flags do not contain CLONE_FILES, so the descriptor table is unchanged and `OwnedFd`s stay valid.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(Error::io("new network namespace"))?;
        mount_bind("/proc/thread-self/ns/net", &path)
            .map_err(Error::io(format!("bind to {}", path.display())))?;
        Ok(namespace)
    }

    /// Moves this thread into an existing namespace.
    pub(crate) fn enter(name: &str) -> Result<(), Error> {
        let path = path(name);
        let namespace = fs::File::open(&path).map_err(Error::io(path.display().to_string()))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(Error::io(format!("entry into {}", path.display())))
    }

    pub(crate) fn persist(mut self) {
        self.persistent = true;
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.persistent {
            // The creation failed; its error is reported instead of this one.
            let _ = remove_name(&self.name);
        }
    }
}

/// Makes the folder a shared mount, as `ip netns add` does. Otherwise a later `ip netns add` would bind the folder onto
/// itself, and our name below it could not be removed any more. The mount is not removed, because other programs use
/// it.
fn share_folder() -> io::Result<()> {
    // `ip netns add` takes the same lock. Released when the descriptor closes.
    let folder = fs::File::open(FOLDER)?;
    flock(&folder, FlockOperation::LockExclusive)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match mount_change(FOLDER, shared) {
        // The folder is not a mount point yet.
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

/// Removes the name. The kernel removes the namespace with its last process.
pub(crate) fn remove_name(name: &str) -> Result<(), Error> {
    let path = path(name);
    match unmount(&path, UnmountFlags::DETACH) {
        // No such file, or nothing is bound to it.
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

/// Disables forwarding: a new namespace copies the host's settings, where it may be enabled.
pub(crate) fn disable_forwarding() -> Result<(), Error> {
    write_settings(&[
        ("ipv4/ip_forward", "0"),
        ("ipv4/conf/all/accept_redirects", "0"),
        ("ipv4/conf/all/rp_filter", "1"),
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
        // Frames between ports of the bridge are filtered by the bridge table only.
        ("bridge/bridge-nf-call-iptables", "0"),
    ])
}

/// Shortens how long connection tracking keeps closed connections, in seconds. They do not count towards the limit of a VM (see
/// `ruleset`), so a VM could otherwise fill the table with them. The settings exist once the packet filter is loaded.
pub(crate) fn shorten_tracking() -> Result<(), Error> {
    write_settings(&[
        ("netfilter/nf_conntrack_tcp_timeout_time_wait", "5"),
        ("netfilter/nf_conntrack_tcp_timeout_close", "5"),
    ])
}

/// Writes settings of this thread's namespace. /proc/sys/net is that of the thread.
fn write_settings(settings: &[(&str, &str)]) -> Result<(), Error> {
    for (setting, value) in settings {
        let path = Path::new("/proc/sys/net").join(setting);
        // A kernel without IPv6, or without filters of bridged packets, has no such setting.
        let optional = setting.starts_with("ipv6") || setting.starts_with("bridge");
        if optional && !path.exists() {
            continue;
        }
        let write = || OpenOptions::new().write(true).open(&path)?.write_all(value.as_bytes());
        write().map_err(Error::io(path.display().to_string()))?;
    }
    Ok(())
}
