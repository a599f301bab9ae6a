//! Checks for programs that bakes and VMs need.

use std::path::Path;

use super::Finding;

/// Name, directories, Debian package and purpose of each program.
const PROGRAMS: [(&str, &[&str], &str, &str); 8] = [
    ("mmdebstrap", &["/usr/bin"], "mmdebstrap", "makes the root file system"),
    ("mkfs.erofs", &["/usr/bin", "/usr/sbin"], "erofs-utils", "packs the root file system"),
    ("mke2fs", &["/usr/sbin"], "e2fsprogs", "makes the private layer"),
    ("e2fsck", &["/usr/sbin"], "e2fsprogs", "checks the private layer of another template"),
    ("resize2fs", &["/usr/sbin"], "e2fsprogs", "grows the private layer of another template"),
    ("xz", &["/usr/bin"], "xz-utils", "unpacks kernel modules"),
    ("nft", &["/usr/sbin", "/usr/bin"], "nftables", "separates VMs from each other and from this machine"),
    ("ip", &["/usr/bin", "/usr/sbin"], "iproute2", "makes the namespace of the VMs' network"),
];

pub(super) fn findings() -> Vec<Finding> {
    PROGRAMS
        .into_iter()
        .map(|(name, folders, package, purpose)| {
            let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
            match found {
                Some(path) => Finding::ok(name, path.display().to_string()),
                None => Finding::missing(name, purpose, format!("apt-get install {package}")),
            }
        })
        .collect()
}
