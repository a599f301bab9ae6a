//! Checks the kernel: version, control groups, Landlock.

use rustix::system::uname;
use skep_jail::CgroupTree;

use super::Finding;

/// The oldest kernel with all features that the jail uses.
const OLDEST: (u32, u32) = (5, 15);
/// From this Landlock ABI on, truncating files is restricted.
const TRUNCATE_ABI: i32 = 3;
/// From this Landlock ABI on, sending signals is restricted.
const SIGNAL_ABI: i32 = 6;

pub(super) fn findings() -> Vec<Finding> {
    vec![version(), control_groups(), landlock()]
}

fn version() -> Finding {
    let release = uname().release().to_string_lossy().into_owned();
    match version_in(&release) {
        Some(version) if version < OLDEST => {
            let way_out = format!("upgrade to Linux {}.{} or newer (Debian 12 has 6.1)", OLDEST.0, OLDEST.1);
            Finding::missing("kernel", format!("Linux {release} is too old"), way_out)
        }
        _ => Finding::ok("kernel", format!("Linux {release}")),
    }
}

fn version_in(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Creates and removes a control group: mount options alone do not show whether a container allows it.
fn control_groups() -> Finding {
    const CHECK: &str = "cgroups";
    if !rustix::process::geteuid().is_root() {
        return Finding::warning(CHECK, "not tried without root", "run `sudo skep doctor`");
    }
    let tried = CgroupTree::create(&format!("skep-doctor-{}", std::process::id())).and_then(|tree| {
        let paths: Vec<String> = tree.paths().map(|path| path.display().to_string()).collect();
        tree.remove().map(|()| paths)
    });
    match tried {
        Ok(paths) => Finding::ok(CHECK, format!("writable: {}", paths.join(", "))),
        Err(error) => Finding::missing(
            CHECK,
            format!("no VM can be limited: {error}"),
            "mount cgroup2 at /sys/fs/cgroup, writable, or start by the unit in packaging/, which delegates a subtree",
        ),
    }
}

fn landlock() -> Finding {
    const CHECK: &str = "landlock";
    let abi = skep_server::confine::landlock_abi();
    if abi == 0 {
        return Finding::warning(
            CHECK,
            "this kernel has no Landlock, or it is switched off: only the uid confines the server",
            "boot with `lsm=landlock,...`, or use a kernel with CONFIG_SECURITY_LANDLOCK",
        );
    }
    if abi >= SIGNAL_ABI {
        return Finding::ok(CHECK, format!("Landlock ABI {abi}: all rules hold"));
    }
    let only_uid = if abi < TRUNCATE_ABI { "truncating files, device ioctls and signals" } else { "signals" };
    let detail = format!("Landlock ABI {abi}: only the uid protects against {only_uid}");
    Finding::warning(CHECK, detail, "use Linux 6.12 or newer for all rules")
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn a_release_is_compared_by_its_numbers() {
        assert_eq!(version_in("6.1.0-56-cloud-amd64"), Some((6, 1)));
        assert_eq!(version_in("5.4"), Some((5, 4)));
        assert_eq!(version_in("6"), None);
        assert!(version_in("5.10.0-1").unwrap() < super::OLDEST);
    }
}
