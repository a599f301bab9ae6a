//! The guest's file systems.

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
/// The VM's own layer.
const LAYER: &str = "/dev/vdb";
/// How often a disk is looked for, every 10 ms.
const DISK_TRIES: u32 = 1000;

/// Mounts the kernel's own file systems below `root`.
pub(crate) fn kernel_views(root: &str) -> Result<(), Error> {
    let guarded = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    attach("proc", &format!("{root}/proc"), "proc", guarded, None)?;
    attach("sysfs", &format!("{root}/sys"), "sysfs", guarded, None)?;
    attach("devtmpfs", &format!("{root}/dev"), "devtmpfs", MountFlags::NOSUID, Some(c"mode=0755"))
}

/// Makes the image and the layer one root, and moves into it.
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
    // What lies in them is memory that nobody can be ended to get back: at the usual half of it each, whoever fills them
    // leaves none for the agent, and the guest ends.
    attach("tmpfs", &at("/dev/shm"), "tmpfs", memory, Some(c"mode=1777,size=25%"))?;
    attach("tmpfs", &at("/run"), "tmpfs", memory, Some(c"mode=755,size=10%"))?;
    temporary_files(&at("/tmp"))?;
    let groups = at("/sys/fs/cgroup");
    // Or each command would wait for a grace period of the kernel before it enters its group: 10 ms in an emulator.
    // Kernels before 6.0 do not know the option.
    attach("cgroup2", &groups, "cgroup2", view, Some(c"favordynmods"))
        .or_else(|_| attach("cgroup2", &groups, "cgroup2", view, None))
}

/// They lie on the disk, where there is more room than in memory.
fn temporary_files(path: &str) -> Result<(), Error> {
    fs::create_dir_all(path).doing(format!("make {path}"))?;
    // Anybody's, and each may remove but their own.
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

/// Its driver may still be looking at it.
fn wait_for(disk: &str) -> Result<(), Error> {
    for _ in 0..DISK_TRIES {
        if Path::new(disk).exists() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(Error::step(format!("find the disk {disk}"), io::Error::from(io::ErrorKind::NotFound)))
}
