//! Checks privileges, the server's user, the data directory and the admin key.

use std::{os::unix::fs::PermissionsExt, path::Path};

use rustix::fs::StatVfsMountFlags;
use skep_keeper::{DataDir, User, holder};
use skep_workspace::Location;

use super::Finding;
use crate::settings::Settings;

const DATA: &str = "data";
/// Warning threshold of free space: a template and a few private layers soon fill less.
const LOW_DISK_BYTES: u64 = 10 << 30;

pub(super) fn privileges() -> Finding {
    const CHECK: &str = "root";
    if rustix::process::geteuid().is_root() {
        return Finding::ok(CHECK, "VMs can be jailed");
    }
    let detail = "VMs need root for namespaces, taps and control groups; everything else works without root";
    Finding::missing(CHECK, detail, "start `skep serve` as root")
}

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    vec![user(settings), data_dir(settings), admin_key(settings)]
}

fn user(settings: &Settings) -> Finding {
    const CHECK: &str = "user";
    match User::resolve(settings.user.as_deref(), settings.root.first().map(|root| root.as_path())) {
        Err(error) => Finding::missing(CHECK, error.to_string(), "useradd --system --no-create-home skep"),
        Ok(user) if user.is_root() => Finding::warning(
            CHECK,
            "the server runs as root: only Landlock, seccomp and missing capabilities confine it",
            "name another user with --user",
        ),
        Ok(user) => Finding::ok(CHECK, format!("the server runs as {} (uid {})", user.name, user.uid)),
    }
}

fn data_dir(settings: &Settings) -> Finding {
    const CHECK: &str = DATA;
    let path = &settings.data_dir;
    let shown = path.display();
    if let Some(found) = unwritable(path) {
        return found;
    }
    if !path.is_dir() {
        return Finding::ok(CHECK, format!("{shown} is created by the first start"));
    }
    if let Some(holder) = DataDir::find(path).ok().and_then(|dir| holder(&dir).ok()).flatten() {
        let address = holder.address.unwrap_or_else(|| "an unknown address".to_owned());
        return Finding::ok(CHECK, format!("{shown} is served by process {} at {address}", holder.pid));
    }
    match free(path) {
        Ok(free) if free < LOW_DISK_BYTES => {
            let detail = format!("only {} MiB are free below {shown}", free >> 20);
            Finding::warning(CHECK, detail, "free some space, or name another place by --data-dir")
        }
        Ok(free) => Finding::ok(CHECK, format!("{shown}, {} GiB free", free >> 30)),
        Err(error) => {
            Finding::missing(CHECK, format!("{shown}: {error}"), "name another place by --data-dir")
        }
    }
}

/// A finding if the data directory is on a read-only file system, or on one of the kernel such as /proc.
fn unwritable(path: &Path) -> Option<Finding> {
    let shown = path.display();
    let wrong = |why: String, way_out: String| Some(Finding::wrong(DATA, why, way_out));
    if Location::of(path).is_ok_and(|found| found.is_on_kernel_filesystem().unwrap_or(false)) {
        let why = format!("{shown} is on a kernel file system, where no folder can be created");
        return wrong(why, "name another place by --data-dir".to_owned());
    }
    // The subdirectories may be mount points. A missing one is created in its parent.
    let parts = ["", "server", "workspaces", "keeper"].map(|part| path.join(part));
    let existing = parts.iter().filter_map(|part| part.ancestors().find(|folder| folder.exists()));
    let read_only = |folder: &Path| {
        rustix::fs::statvfs(folder).is_ok_and(|disk| disk.f_flag.contains(StatVfsMountFlags::RDONLY))
    };
    let found = existing.into_iter().find(|folder| read_only(folder))?.display();
    wrong(
        format!("{shown} cannot be written: the file system of {found} is mounted read-only"),
        format!(
            "mount it for writing (`mount -o remount,rw`, from the mount point above {found}), or name another place by --data-dir"
        ),
    )
}

fn free(path: &Path) -> std::io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn admin_key(settings: &Settings) -> Finding {
    const CHECK: &str = "admin key";
    let path = settings.admin_key();
    let shown = path.display();
    match path.metadata() {
        Err(_) => Finding::ok(CHECK, format!("{shown} is created by the first start, or was removed")),
        Ok(found) if found.permissions().mode() & 0o077 != 0 => {
            let way_out = format!("chmod 600 {shown}, revoke it with `skep keys revoke`, and create another");
            Finding::wrong(CHECK, format!("{shown} can be read by others"), way_out)
        }
        Ok(_) => Finding::ok(CHECK, shown.to_string()),
    }
}
