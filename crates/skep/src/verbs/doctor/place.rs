//! Where a server would run: its privileges, its user, its data directory.

use std::{os::unix::fs::PermissionsExt, path::Path};

use skep_keeper::{DataDir, User, holder};

use super::Finding;
use crate::settings::Settings;

/// Less is soon filled by a template and a few private layers.
const LOW_DISK_BYTES: u64 = 10 << 30;

pub(super) fn privileges() -> Finding {
    const CHECK: &str = "root";
    if rustix::process::geteuid().is_root() {
        return Finding::ok(CHECK, "VMs can be jailed");
    }
    let detail = "VMs need root for namespaces, taps and control groups; all else is served without";
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
            "the server runs as root, which is no jail: only Landlock and missing capabilities hold it",
            "name another user with --user",
        ),
        Ok(user) => Finding::ok(CHECK, format!("the server runs as {} (uid {})", user.name, user.uid)),
    }
}

fn data_dir(settings: &Settings) -> Finding {
    const CHECK: &str = "data";
    let path = &settings.data_dir;
    let shown = path.display();
    if !path.is_dir() {
        return Finding::ok(CHECK, format!("{shown} is made by the first start"));
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

fn free(path: &Path) -> std::io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn admin_key(settings: &Settings) -> Finding {
    const CHECK: &str = "admin key";
    let path = settings.admin_key();
    let shown = path.display();
    match path.metadata() {
        Err(_) => Finding::ok(CHECK, format!("{shown} is made by the first start, or was taken away")),
        Ok(found) if found.permissions().mode() & 0o077 != 0 => {
            let way_out = format!("chmod 600 {shown}, revoke it by `skep keys revoke`, and make another");
            Finding::wrong(CHECK, format!("{shown} can be read by others"), way_out)
        }
        Ok(_) => Finding::ok(CHECK, shown.to_string()),
    }
}
