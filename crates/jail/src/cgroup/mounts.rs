//! Finds the cgroup hierarchies of the machine, and where in them groups can be created.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::hierarchy::{CONTROLLERS, Hierarchy, Version};
use crate::Error;

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    point: PathBuf,
    /// Version 1 only.
    controllers: Vec<String>,
}

/// The hierarchies with a relevant controller, and the root of skep's tree in each.
pub(super) fn find(name: &str) -> Result<Vec<Hierarchy>, Error> {
    let read = |path: &str| fs::read_to_string(path).map_err(Error::io(path));
    let mounts = parse_mounts(&read("/proc/self/mountinfo")?);
    let own = own_group(&read("/proc/self/cgroup")?);
    if mounts.is_empty() {
        return Err(Error::NoCgroup(
            "no cgroup file system is mounted; mount one at /sys/fs/cgroup".to_owned(),
        ));
    }
    Ok(mounts.into_iter().map(|mount| hierarchy_of(mount, &own, name)).collect())
}

fn hierarchy_of(mount: Mount, own: &Path, name: &str) -> Hierarchy {
    let Mount { version, point, mut controllers } = mount;
    let mut delegated = false;
    let mut above = point.clone();
    if version == Version::Two {
        let unit = delegated_group(&point, own);
        delegated = unit.is_some();
        above = unit.unwrap_or(point);
        let offered = fs::read_to_string(above.join("cgroup.controllers")).unwrap_or_default();
        controllers = relevant_controllers(offered.split_whitespace());
    }
    Hierarchy { version, controllers, root: above.join(name), delegated }
}

/// The group that systemd delegated, which systemd marks by an extended attribute (see "Control Group APIs and
/// Delegation"). A keeper that was restarted within the unit runs in the child group that the first one created.
fn delegated_group(point: &Path, own: &Path) -> Option<PathBuf> {
    let marked = |folder: &Path| {
        ["trusted.delegate", "user.delegate"].iter().any(|mark| {
            let mut value = [0_u8; 4];
            matches!(rustix::fs::getxattr(folder, *mark, &mut value), Ok(length) if value[..length] == *b"1")
        })
    };
    let own = point.join(own.strip_prefix("/").ok()?);
    let outer = own.parent().filter(|_| own.ends_with("keeper")).map(Path::to_owned);
    [Some(own), outer].into_iter().flatten().find(|folder| folder != point && marked(folder))
}

fn relevant_controllers<'a>(offered: impl Iterator<Item = &'a str>) -> Vec<String> {
    offered.filter(|one| CONTROLLERS.contains(one)).map(str::to_owned).collect()
}

/// The process's own group in the version 2 hierarchy: the line `0::/path`.
fn own_group(text: &str) -> PathBuf {
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").into()
}

/// The relevant cgroup mounts in `/proc/self/mountinfo` (proc_pid_mountinfo(5)). Further mounts of the same hierarchy
/// are ignored.
fn parse_mounts(text: &str) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for mount in text.lines().filter_map(parse_mount) {
        let known = mounts.iter().any(|other| match mount.version {
            Version::Two => other.version == Version::Two,
            Version::One => other.controllers.iter().any(|controller| mount.controllers.contains(controller)),
        });
        if !known {
            mounts.push(mount);
        }
    }
    mounts
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let point = unescape(left.split(' ').nth(4)?).into();
    let mut right = right.split(' ');
    match (right.next()?, right.nth(1)?) {
        ("cgroup2", _) => Some(Mount { version: Version::Two, point, controllers: Vec::new() }),
        ("cgroup", options) => {
            let controllers = relevant_controllers(options.split(','));
            (!controllers.is_empty()).then_some(Mount { version: Version::One, point, controllers })
        }
        _ => None,
    }
}

/// Decodes `\040` as a blank. Other escapes do not occur in cgroup mount points.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 25 0:27 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:29 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
34 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:12 - cgroup cgroup rw,cpu,cpuacct
35 31 0:31 / /sys/fs/cgroup/memory rw shared:13 - cgroup cgroup rw,memory
36 31 0:31 / /somewhere/else rw shared:13 - cgroup cgroup rw,memory
";

    #[test]
    fn a_hybrid_machine_has_one_mount_for_each_controller() {
        let found = parse_mounts(HYBRID);
        let of = |version, point: &str, controllers: &[&str]| Mount {
            version,
            point: point.into(),
            controllers: controllers.iter().map(|one| (*one).to_owned()).collect(),
        };
        assert_eq!(
            found,
            [
                of(Version::Two, "/sys/fs/cgroup/unified", &[]),
                of(Version::One, "/sys/fs/cgroup/cpu,cpuacct", &["cpu", "cpuacct"]),
                of(Version::One, "/sys/fs/cgroup/memory", &["memory"]),
            ]
        );
    }

    #[test]
    fn a_pure_machine_has_one_hierarchy() {
        let line =
            "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
        assert_eq!(parse_mounts(line).len(), 1);
    }

    #[test]
    fn the_own_group_is_that_of_version_two() {
        assert_eq!(
            own_group("9:memory:/a\n0::/system.slice/skep.service\n"),
            Path::new("/system.slice/skep.service")
        );
        assert_eq!(own_group("9:memory:/a\n"), Path::new("/"));
    }
}
