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

use crate::error::{Doing, Error};

/// The shared, read-only image.
const IMAGE: &str = "/dev/vda";
/// The writable layer of this VM.
const LAYER: &str = "/dev/vdb";
/// The most attempts to find a disk, 10 ms apart.
const DISK_TRIES: u32 = 1000;

/// Mounts proc, sysfs and devtmpfs below `root`.
pub(crate) fn kernel_views(root: &str) -> Result<(), Error> {
    let guarded = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    attach("proc", &format!("{root}/proc"), "proc", guarded, None)?;
    attach("sysfs", &format!("{root}/sys"), "sysfs", guarded, None)?;
    attach("devtmpfs", &format!("{root}/dev"), "devtmpfs", MountFlags::NOSUID, Some(c"mode=0755"))
}

/// Combines image and layer into an overlay, and makes it the root.
pub(crate) fn enter_root() -> Result<(), Error> {
    wait_for(IMAGE)?;
    wait_for(LAYER)?;
    attach(IMAGE, "/lower", "erofs", MountFlags::RDONLY, None)?;
    attach(LAYER, "/layer", "ext4", MountFlags::NOATIME, None)?;
    for folder in ["/layer/upper", "/layer/work"] {
        fs::create_dir_all(folder).doing(format!("make {folder}"))?;
    }
    let parts = c"lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work";
    attach("overlay", "/newroot", "overlay", MountFlags::NOATIME, Some(parts))?;
    kernel_views("/newroot")?;
    working_mounts("/newroot")?;
    chdir("/newroot").doing("enter the root")?;
    mount_move(".", "/").doing("move the root")?;
    chroot(".").doing("change the root")?;
    chdir("/").doing("enter the root")
}

fn working_mounts(root: &str) -> Result<(), Error> {
    let memory = MountFlags::NOSUID | MountFlags::NODEV;
    let view = memory | MountFlags::NOEXEC;
    let at = |path: &str| format!("{root}{path}");
    attach("devpts", &at("/dev/pts"), "devpts", MountFlags::NOSUID, Some(c"mode=620,gid=5,ptmxmode=666"))?;
    // The content of these mounts is memory that the OOM killer cannot free. With the default limit of half the memory
    // each, filling them would leave none for the agent, and the VM would end.
    attach("tmpfs", &at("/dev/shm"), "tmpfs", memory, Some(c"mode=1777,size=25%"))?;
    attach("tmpfs", &at("/run"), "tmpfs", memory, Some(c"mode=755,size=10%"))?;
    temporary_files(&at("/tmp"))?;
    let groups = at("/sys/fs/cgroup");
    // Without `favordynmods`, moving a process into a group waits for an RCU grace period: 10 ms in an emulator.
    // Kernels before 6.0 do not know the option.
    attach("cgroup2", &groups, "cgroup2", view, Some(c"favordynmods"))
        .or_else(|_| attach("cgroup2", &groups, "cgroup2", view, None))
}

/// `/tmp` is on the disk, which has more space than the memory.
fn temporary_files(path: &str) -> Result<(), Error> {
    fs::create_dir_all(path).doing(format!("make {path}"))?;
    // World-writable with the sticky bit.
    fs::set_permissions(path, Permissions::from_mode(0o1777)).doing(format!("open {path} to all"))
}

fn attach(
    source: &str,
    target: &str,
    kind: &str,
    flags: MountFlags,
    data: Option<&CStr>,
) -> Result<(), Error> {
    let path = Path::new(target);
    if !path.is_dir() {
        fs::create_dir_all(path).doing(format!("make {target}"))?;
    }
    mount(source, target, kind, flags, data).doing(format!("mount {kind} at {target}"))
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
