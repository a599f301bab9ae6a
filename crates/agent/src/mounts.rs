//! Mounts the guest's file systems.

use std::{
    ffi::CStr,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::Duration,
};

use rustix::{
    mount::{MountFlags, mount, mount_move},
    process::{chdir, chroot},
};

use crate::error::{Error, StepContext};

/// The shared, read-only image.
const IMAGE: &str = "/dev/vda";
/// The writable layer of this VM.
const LAYER: &str = "/dev/vdb";
/// The most attempts to find a disk, 10 ms apart.
const DISK_TRIES: u32 = 1000;

/// Mounts proc, sysfs and devtmpfs below `root`.
pub(crate) fn mount_kernel_filesystems(root: &str) -> Result<(), Error> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount_at("proc", &format!("{root}/proc"), "proc", flags, None)?;
    mount_at("sysfs", &format!("{root}/sys"), "sysfs", flags, None)?;
    mount_at("devtmpfs", &format!("{root}/dev"), "devtmpfs", MountFlags::NOSUID, Some(c"mode=0755"))
}

/// Combines image and layer into an overlay, and makes it the root.
pub(crate) fn enter_root() -> Result<(), Error> {
    wait_for(IMAGE)?;
    wait_for(LAYER)?;
    mount_at(IMAGE, "/lower", "erofs", MountFlags::RDONLY, None)?;
    mount_at(LAYER, "/layer", "ext4", MountFlags::NOATIME, None)?;
    for folder in ["/layer/upper", "/layer/work"] {
        fs::create_dir_all(folder).context(format!("make {folder}"))?;
    }
    let parts = c"lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work";
    mount_at("overlay", "/newroot", "overlay", MountFlags::NOATIME, Some(parts))?;
    mount_kernel_filesystems("/newroot")?;
    mount_runtime_filesystems("/newroot")?;
    chdir("/newroot").context("enter the root")?;
    mount_move(".", "/").context("move the root")?;
    chroot(".").context("change the root")?;
    chdir("/").context("enter the root")
}

fn mount_runtime_filesystems(root: &str) -> Result<(), Error> {
    let tmpfs_flags = MountFlags::NOSUID | MountFlags::NODEV;
    let kernel_flags = tmpfs_flags | MountFlags::NOEXEC;
    let at = |path: &str| format!("{root}{path}");
    mount_at("devpts", &at("/dev/pts"), "devpts", MountFlags::NOSUID, Some(c"mode=620,gid=5,ptmxmode=666"))?;
    // The content of these mounts is memory that the OOM killer cannot free. With the default limit of half the memory
    // each, filling them would leave none for the agent, and the VM would end.
    mount_at("tmpfs", &at("/dev/shm"), "tmpfs", tmpfs_flags, Some(c"mode=1777,size=25%"))?;
    mount_at("tmpfs", &at("/run"), "tmpfs", tmpfs_flags, Some(c"mode=755,size=10%"))?;
    make_temporary_folder(&at("/tmp"))?;
    let groups = at("/sys/fs/cgroup");
    // Without `favordynmods`, moving a process into a group waits for an RCU grace period: 10 ms in an emulator.
    // Kernels before 6.0 do not know the option.
    mount_at("cgroup2", &groups, "cgroup2", kernel_flags, Some(c"favordynmods"))
        .or_else(|_| mount_at("cgroup2", &groups, "cgroup2", kernel_flags, None))
}

/// `/tmp` is on the disk, which has more space than the memory.
fn make_temporary_folder(path: &str) -> Result<(), Error> {
    fs::create_dir_all(path).context(format!("make {path}"))?;
    // World-writable with the sticky bit.
    fs::set_permissions(path, Permissions::from_mode(0o1777)).context(format!("open {path} to all"))
}

fn mount_at(
    source: &str,
    target: &str,
    kind: &str,
    flags: MountFlags,
    data: Option<&CStr>,
) -> Result<(), Error> {
    let path = Path::new(target);
    if !path.is_dir() {
        fs::create_dir_all(path).context(format!("make {target}"))?;
    }
    mount(source, target, kind, flags, data).context(format!("mount {kind} at {target}"))
}

/// Waits for a disk that its driver has not found yet.
fn wait_for(disk: &str) -> Result<(), Error> {
    for _ in 0..DISK_TRIES {
        if Path::new(disk).exists() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(Error::step(format!("find the disk {disk}"), io::Error::from(io::ErrorKind::NotFound)))
}
