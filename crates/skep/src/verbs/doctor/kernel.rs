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
/// The bit of this capability; capabilities(7).
const CAP_SYS_PTRACE: u64 = 1 << 19;

pub(super) fn findings() -> Vec<Finding> {
    vec![version(), control_groups(), landlock(), guest_memory()]
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

/// The keeper reads the memory of VMMs for each snapshot, fork and pause to disk.
fn guest_memory() -> Finding {
    const CHECK: &str = "guest memory";
    if !rustix::process::geteuid().is_root() {
        return Finding::warning(CHECK, "not tried without root", "run `sudo skep doctor`");
    }
    match std::fs::read_to_string("/proc/self/status") {
        Ok(status) if may_read_memory(&status) => {
            Finding::ok(CHECK, "memory of VMs can be read, for snapshots, forks and pauses to disk")
        }
        Ok(_) => Finding::warning(
            CHECK,
            "without CAP_SYS_PTRACE no VM can be snapshotted, forked or paused to disk",
            "give `skep serve` this capability, in a container by --cap-add SYS_PTRACE",
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("/proc/self/status cannot be read: {error}"),
            "mount proc at /proc",
        ),
    }
}

/// Whether the effective capabilities in the status of a process include `CAP_SYS_PTRACE`.
fn may_read_memory(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & CAP_SYS_PTRACE != 0)
}

fn landlock() -> Finding {
    const CHECK: &str = "landlock";
    let abi = skep_server::confine::landlock_abi();
    if abi == 0 {
        return Finding::warning(
            CHECK,
            "this kernel has no Landlock, or it is switched off: only uid and seccomp confine the server",
            "boot with `lsm=landlock,...`, or use a kernel with CONFIG_SECURITY_LANDLOCK",
        );
    }
    if abi >= SIGNAL_ABI {
        return Finding::ok(CHECK, format!("Landlock ABI {abi}: all rules hold"));
    }
    let only_uid = if abi < TRUNCATE_ABI { "truncating files, device ioctls and signals" } else { "signals" };
    let detail = format!(
        "Landlock ABI {abi}: only the uid protects against {only_uid}, and nothing against connections to abstract sockets"
    );
    Finding::warning(CHECK, detail, "use Linux 6.12 or newer for all rules")
}

#[cfg(test)]
mod tests {
    use super::{may_read_memory, version_in};

    #[test]
    fn memory_can_be_read_with_the_effective_capability_alone() {
        let status =
            |effective: &str| format!("Name:\tskep\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\n");
        assert!(may_read_memory(&status("000001ffffffffff")));
        assert!(may_read_memory(&status("0000000000080000")));
        assert!(!may_read_memory(&status("000001fffff7ffff")));
        assert!(!may_read_memory("Name:\tskep\n"));
    }

    #[test]
    fn a_release_is_compared_by_its_numbers() {
        assert_eq!(version_in("6.1.0-56-cloud-amd64"), Some((6, 1)));
        assert_eq!(version_in("5.4"), Some((5, 4)));
        assert_eq!(version_in("6"), None);
        assert!(version_in("5.10.0-1").unwrap() < super::OLDEST);
    }
}
