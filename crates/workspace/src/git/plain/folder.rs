//! A folder of a work tree, held open: what is looked for in it is found below it and nowhere else.

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat2, readlinkat, statat},
    io::Errno,
};

use crate::roots::read_up_to;

/// The most names of a folder that are looked at.
const MOST_NAMES: usize = 200_000;

/// A folder that is open. No link is followed in it, and no other file system entered.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

/// What stands in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) name: Box<[u8]>,
    pub(super) is_folder: bool,
}

/// What a path is.
pub(super) enum Stands {
    Nothing,
    Something(Stat),
}

/// What is there to be read.
#[derive(Debug)]
pub(super) enum Content {
    Nothing,
    /// Not a regular file, or not without following a link.
    Other,
    /// And its size when it was found, in bytes.
    File(File, i64),
}

impl Folder {
    pub(super) fn of(top: File) -> Self {
        Self(top.into())
    }

    /// A folder below. The inner is `None` where there is none, and what leads to one is none.
    pub(super) fn below(&self, path: &[u8]) -> Option<Option<Self>> {
        match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
            Ok(folder) => Some(Some(Self(folder))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Some(None),
            Err(_) => None,
        }
    }

    /// What has this name, itself.
    pub(super) fn look(&self, name: &[u8]) -> Option<Stands> {
        match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(Stands::Something(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Some(Stands::Nothing),
            Err(_) => None,
        }
    }

    /// A regular file below, opened.
    pub(super) fn file(&self, path: &[u8]) -> Option<Content> {
        let handle = match self.open(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(handle) => handle,
            Err(Errno::NOENT | Errno::NOTDIR) => return Some(Content::Nothing),
            Err(Errno::LOOP) => return Some(Content::Other),
            Err(_) => return None,
        };
        let stat = fstat(&handle).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Some(Content::Other);
        }
        // This very file, whatever has its name by now.
        let own_name = format!("/proc/self/fd/{}", handle.as_raw_fd());
        File::open(own_name).ok().map(|file| Content::File(file, stat.st_size))
    }

    /// The whole content of a small file below. The inner is `None` where nothing is there.
    pub(super) fn small(&self, path: &[u8], most: u64) -> Option<Option<Vec<u8>>> {
        let (file, size) = match self.file(path)? {
            Content::Nothing => return Some(None),
            Content::Other => return None,
            Content::File(file, size) => (file, size),
        };
        let content = read_up_to(file, size, most + 1).ok()?;
        (content.len() as u64 <= most).then_some(Some(content))
    }

    /// What a link below says.
    pub(super) fn link(&self, path: &[u8]) -> Option<Vec<u8>> {
        let handle = self.open(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        readlinkat(&handle, "", Vec::new()).ok().map(std::ffi::CString::into_bytes)
    }

    /// All names but `.` and `..`; of what is neither a file, nor a link, nor a folder git knows nothing.
    pub(super) fn names(&self) -> Option<Vec<Name>> {
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
                FileType::Unknown => match self.look(name)? {
                    Stands::Nothing => continue,
                    Stands::Something(stat) => FileType::from_raw_mode(stat.st_mode),
                },
                kind => kind,
            };
            if matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Directory) {
                names.push(Name { name: name.into(), is_folder: kind == FileType::Directory });
            }
            if names.len() > MOST_NAMES {
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
                // A rename meanwhile left the kernel unsure (openat2(2)).
                Err(Errno::AGAIN | Errno::INTR) if tries < 16 => tries += 1,
                outcome => return outcome,
            }
        }
    }
}
