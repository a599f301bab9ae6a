//! An open folder of a work tree. Look-ups in it cannot leave it.

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat2, readlinkat, statat},
    io::Errno,
};

use crate::roots::read_up_to;

/// Limit of names in a folder.
const MAX_NAMES: usize = 200_000;

/// An open folder. Look-ups neither follow links nor enter other file systems.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FolderEntry {
    pub(super) name: Box<[u8]>,
    pub(super) is_folder: bool,
}

pub(super) enum PathState {
    Missing,
    Present(Stat),
}

#[derive(Debug)]
pub(super) enum OpenedFile {
    Missing,
    /// Not a regular file, or only reachable through a link.
    NotRegular,
    /// The file and its size when it was opened, in bytes.
    File(File, i64),
}

impl Folder {
    pub(super) fn of(top: File) -> Self {
        Self(top.into())
    }

    /// Opens a folder at this path. The inner `Option` is `None` if there is none.
    pub(super) fn open_folder(&self, path: &[u8]) -> Option<Option<Self>> {
        match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
            Ok(folder) => Some(Some(Self(folder))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Some(None),
            Err(_) => None,
        }
    }

    /// The metadata of a name; links are not followed.
    pub(super) fn stat(&self, name: &[u8]) -> Option<PathState> {
        match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(PathState::Present(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Some(PathState::Missing),
            Err(_) => None,
        }
    }

    /// Opens the regular file at this path.
    pub(super) fn open_file(&self, path: &[u8]) -> Option<OpenedFile> {
        let handle = match self.open(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(handle) => handle,
            Err(Errno::NOENT | Errno::NOTDIR) => return Some(OpenedFile::Missing),
            Err(Errno::LOOP) => return Some(OpenedFile::NotRegular),
            Err(_) => return None,
        };
        let stat = fstat(&handle).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Some(OpenedFile::NotRegular);
        }
        // Through the descriptor, so that exactly this file is opened even if the path was replaced.
        let own_name = format!("/proc/self/fd/{}", handle.as_raw_fd());
        File::open(own_name).ok().map(|file| OpenedFile::File(file, stat.st_size))
    }

    /// The content of a file of limited size. The inner `Option` is `None` if the file does not exist.
    pub(super) fn read_small(&self, path: &[u8], most: u64) -> Option<Option<Vec<u8>>> {
        let (file, size) = match self.open_file(path)? {
            OpenedFile::Missing => return Some(None),
            OpenedFile::NotRegular => return None,
            OpenedFile::File(file, size) => (file, size),
        };
        let content = read_up_to(file, size, most + 1).ok()?;
        (content.len() as u64 <= most).then_some(Some(content))
    }

    /// The target of a symbolic link.
    pub(super) fn read_link(&self, path: &[u8]) -> Option<Vec<u8>> {
        let handle = self.open(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        readlinkat(&handle, "", Vec::new()).ok().map(std::ffi::CString::into_bytes)
    }

    /// All names except `.` and `..`. Only files, links and folders are listed, as git ignores everything else.
    pub(super) fn entries(&self) -> Option<Vec<FolderEntry>> {
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut names = Vec::new();
        let mut entries = RawDir::new(&self.0, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.ok()?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match self.stat(name)? {
                    PathState::Missing => continue,
                    PathState::Present(stat) => FileType::from_raw_mode(stat.st_mode),
                },
                kind => kind,
            };
            if matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Directory) {
                names.push(FolderEntry { name: name.into(), is_folder: kind == FileType::Directory });
            }
            if names.len() > MAX_NAMES {
                return None;
            }
        }
        Some(names)
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::CLOEXEC;
        let mut tries = 0;
        loop {
            match openat2(&self.0, path, flags, Mode::empty(), resolve) {
                // The kernel could not exclude an escape because of a concurrent rename (openat2(2)).
                Err(Errno::AGAIN | Errno::INTR) if tries < 16 => tries += 1,
                outcome => return outcome,
            }
        }
    }
}
