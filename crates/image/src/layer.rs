//! The private disk layer: an ext4 on a sparse file, which the guest mounts over the shared root. It is empty, or begins
//! as a copy of the parent's.

use std::{ffi::OsStr, fs::File, path::Path};

use crate::{
    Error,
    command::{Containment, Program},
};

const MKE2FS: Program = Program { name: "mke2fs", package: "e2fsprogs" };
const E2FSCK: Program = Program { name: "e2fsck", package: "e2fsprogs" };
const RESIZE2FS: Program = Program { name: "resize2fs", package: "e2fsprogs" };
const CP: Program = Program { name: "cp", package: "coreutils" };

/// Writes an empty file system, sparse, of this size in MiB. Without a journal, because the layer is deleted with its VM and
/// a journal would be copied for each VM.
pub(crate) fn write_empty(to: &Path, disk_mb: u64, pen: &Containment) -> Result<(), Error> {
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
    let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    arguments.push(to.as_os_str());
    pen.run(&MKE2FS, Path::new("/"), &arguments).map(drop)
}

/// Writes a copy of a parent's layer, sparse.
pub(crate) fn copy(parent: &Path, to: &Path, pen: &Containment) -> Result<(), Error> {
    let options = ["--sparse=always", "--reflink=auto", "--"].map(OsStr::new);
    let files = [parent, to].map(Path::as_os_str);
    pen.run(&CP, Path::new("/"), &[options.as_slice(), &files].concat()).map(drop)
}

/// Repairs a copy of a parent's layer and grows it to this size in MiB. The parent was saved while its guest ran, so its file
/// system is repaired as after a crash.
pub(crate) fn repair_and_grow(layer: &Path, disk_mb: u64, pen: &Containment) -> Result<(), Error> {
    let run = |program: &Program, arguments: &[&OsStr]| pen.run(program, Path::new("/"), arguments);
    let file = layer.as_os_str();
    // It has the owner and the mode of a file of the image directory.
    let grow = || File::options().write(true).open(layer)?.set_len(disk_mb << 20);
    grow().map_err(Error::io(layer.display()))?;
    // `-y` repairs; the second run fails if something is left.
    let _ = run(&E2FSCK, &["-f".as_ref(), "-y".as_ref(), file]);
    run(&E2FSCK, &["-f".as_ref(), "-n".as_ref(), file])?;
    run(&RESIZE2FS, &[file]).map(drop)
}
