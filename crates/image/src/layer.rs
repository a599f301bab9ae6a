//! The private disk layer: an empty ext4 on a sparse file, which the guest mounts over the shared root.

use std::{fs::File, path::Path};

use crate::{
    Error,
    command::{Containment, Program},
};

const MKE2FS: Program = Program { name: "mke2fs", package: "e2fsprogs" };

/// Writes the file, sparse, of this size in MiB. Without a journal, because the layer is deleted with its VM and a journal would be copied for each
/// VM.
pub(crate) fn write(to: &Path, disk_mb: u64, pen: &Containment) -> Result<(), Error> {
    let make = || File::create(to)?.set_len(disk_mb << 20);
    make().map_err(Error::io(to.display()))?;
    let options = [
        "-q",
        "-t",
        "ext4",
        "-O",
        "^has_journal,^resize_inode",
        "-m",
        "0",
        "-i",
        "65536",
        "-E",
        "lazy_itable_init=1",
    ];
    let mut arguments: Vec<&std::ffi::OsStr> = options.iter().map(std::ffi::OsStr::new).collect();
    arguments.push(to.as_os_str());
    pen.run(&MKE2FS, Path::new("/"), &arguments).map(drop)
}
