//! Handles of what was found at a path.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Stat, fstat},
    io::Errno,
};

/// The largest buffer that is allocated before reading, in bytes: the size that the kernel reports may be any number.
const MAX_PREALLOCATION: u64 = 1 << 20;

/// An `O_PATH` handle. It refers to the same inode even if the path is renamed or replaced later.
#[derive(Debug)]
pub(crate) struct PathHandle {
    handle: OwnedFd,
    stat: Stat,
    path: PathBuf,
}

/// A name in an open folder, whether or not an entry of this name exists.
#[derive(Debug)]
pub(crate) struct Slot {
    folder: PathHandle,
    name: OsString,
}

impl PathHandle {
    pub(super) fn new(handle: OwnedFd, path: PathBuf) -> io::Result<Self> {
        Ok(Self { stat: fstat(&handle)?, handle, path })
    }

    pub(super) fn device(&self) -> u64 {
        self.stat.st_dev
    }

    /// The path by which it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata at the time of the lookup.
    pub(crate) fn stat(&self) -> &Stat {
        &self.stat
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Opens it for reading. Refuses FIFOs, whose open could block, and devices.
    ///
    /// # Errors
    /// `EINVAL` if it is neither a regular file nor a directory; otherwise the error of the kernel.
    pub(crate) fn open_for_reading(&self) -> io::Result<File> {
        self.open(OpenOptions::new().read(true))
    }

    /// The first `most` bytes of its content.
    ///
    /// # Errors
    /// Those of [`Self::open_for_reading`].
    pub(crate) fn content(&self, most: u64) -> io::Result<Vec<u8>> {
        read_up_to(self.open_for_reading()?, self.stat.st_size, most)
    }

    /// Opens it for appending.
    ///
    /// # Errors
    /// Those of [`Self::open_for_reading`], and `EISDIR` for a folder.
    pub(crate) fn open_for_appending(&self) -> io::Result<File> {
        self.open(OpenOptions::new().append(true))
    }

    fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        if !matches!(self.kind(), FileType::RegularFile | FileType::Directory) {
            return Err(Errno::INVAL.into());
        }
        options.custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open(self.proc_path())
    }

    /// A path to exactly this inode, valid within this process. The original path may lead elsewhere by now.
    pub(crate) fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd())
    }
}

/// Reads up to `most` bytes of a file whose expected size is `size`.
///
/// # Errors
/// Any error of `read(2)`.
fn read_up_to(file: File, size: i64, most: u64) -> io::Result<Vec<u8>> {
    // At most the current size. The 32 extra bytes let `read_to_end` see the end of the file without growing the
    // buffer.
    let expected = u64::try_from(size).unwrap_or_default().min(most).min(MAX_PREALLOCATION);
    let mut content = Vec::with_capacity(usize::try_from(expected).unwrap_or_default() + 32);
    file.take(most).read_to_end(&mut content)?;
    Ok(content)
}

impl AsFd for PathHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Slot {
    pub(super) fn new(folder: PathHandle, name: OsString) -> Self {
        Self { folder, name }
    }

    pub(crate) fn folder(&self) -> &PathHandle {
        &self.folder
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// The folder and the name, as [`EntryLocks`](crate::EntryLocks) takes them.
    pub(crate) fn entry(&self) -> (BorrowedFd<'_>, &OsStr) {
        (self.folder.as_fd(), &self.name)
    }

    /// Syncs the folder: ext4 may lose a new name in a power cut otherwise.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub(crate) fn sync_folder(&self) -> io::Result<()> {
        self.folder.open_for_reading()?.sync_all()
    }
}
