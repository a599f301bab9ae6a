//! What was found at a path.

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

/// The most that is set aside for a content before any of it is read, in bytes: a size may be any number.
const MOST_EXPECTED: u64 = 1 << 20;

/// What was found at a path: this very thing, whatever has its name later. It reads and writes nothing.
#[derive(Debug)]
pub(crate) struct Found {
    handle: OwnedFd,
    stat: Stat,
    path: PathBuf,
}

/// A name in a folder, where something stands or may stand.
#[derive(Debug)]
pub(crate) struct Slot {
    folder: Found,
    name: OsString,
}

impl Found {
    pub(super) fn new(handle: OwnedFd, path: PathBuf) -> io::Result<Self> {
        Ok(Self { stat: fstat(&handle)?, handle, path })
    }

    /// The file system that it lies on.
    pub(super) fn device(&self) -> u64 {
        self.stat.st_dev
    }

    /// Its path, as it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the kernel said of it when it was found.
    pub(crate) fn stat(&self) -> &Stat {
        &self.stat
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Opens it for reading. Only what has content: a FIFO would hang, and a device is no file.
    ///
    /// # Errors
    /// `EINVAL` for what is neither a regular file nor a folder, and what the kernel refuses.
    pub(crate) fn read(&self) -> io::Result<File> {
        self.open(OpenOptions::new().read(true))
    }

    /// What it holds, at most so many bytes.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub(crate) fn content(&self, most: u64) -> io::Result<Vec<u8>> {
        read_up_to(self.read()?, self.stat.st_size, most)
    }

    /// Opens it for writing at its end.
    ///
    /// # Errors
    /// Those of [`Self::read`], and `EISDIR` for a folder.
    pub(crate) fn append(&self) -> io::Result<File> {
        self.open(OpenOptions::new().append(true))
    }

    fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        if !matches!(self.kind(), FileType::RegularFile | FileType::Directory) {
            return Err(Errno::INVAL.into());
        }
        options.custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open(self.own_name())
    }

    /// A name of this very thing, for this process: every other name could lead elsewhere by now.
    pub(crate) fn own_name(&self) -> String {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd())
    }
}

/// What a file of about this size holds, at most so many bytes.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn read_up_to(file: File, size: i64, most: u64) -> io::Result<Vec<u8>> {
    // No more than it has now, however much it may have, and room to see its end (without it one is tried for first).
    let expected = u64::try_from(size).unwrap_or_default().min(most).min(MOST_EXPECTED);
    let mut content = Vec::with_capacity(usize::try_from(expected).unwrap_or_default() + 32);
    file.take(most).read_to_end(&mut content)?;
    Ok(content)
}

impl AsFd for Found {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Slot {
    pub(super) fn new(folder: Found, name: OsString) -> Self {
        Self { folder, name }
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Found {
        &self.folder
    }

    /// The name in it.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Both, for a lock.
    pub(crate) fn entry(&self) -> (BorrowedFd<'_>, &OsStr) {
        (self.folder.as_fd(), &self.name)
    }

    /// Brings the folder's names to the disk: ext4 may lose a new one in a power cut.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(crate) fn sync_folder(&self) -> io::Result<()> {
        self.folder.read()?.sync_all()
    }
}
