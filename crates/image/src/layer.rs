//! The private disk layer: an empty ext4 on a sparse file, which the guest mounts over the shared root.

use std::{fs::File, path::Path};

use crate::{
    Error,
    command::{Containment, Program},
};

const MKE2FS: Program = Program { name: "mke2fs", package: "e2fsprogs" };
/// Size of the file system for a VM's own files, in MiB. The file is sparse.
pub(crate) const LAYER_MB: u64 = 2048;

/// Writes the file. Without a journal, because the layer is deleted with its VM and a journal would be copied for each
/// VM.
pub(crate) fn write(to: &Path, pen: &Containment) -> Result<(), Error> {
    let make = || File::create(to)?.set_len(LAYER_MB << 20);
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
