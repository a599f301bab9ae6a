//! Opens files below the folder of a search.

use std::{fs::File, io, os::fd::AsFd, path::Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

/// Opens a regular file without following links, also if the path was replaced meanwhile.
pub(super) fn open(folder: impl AsFd, below: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = openat2(folder, below, flags, Mode::empty(), resolve)?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
