//! The set of watched folders. Each one is opened below the top folder, without following links.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    fs::File,
    hash::{BuildHasher, RandomState},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{
        FileType, Mode, OFlags, ResolveFlags, fstat,
        inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
        openat2,
    },
    io::Errno,
};
use skep_api::streams::FileChange;

use super::changes::Changes;
use crate::{
    Error, Roots,
    files::entries,
    roots::{FinalLink, PathHandle},
};

/// The most folders of one tree. Each watch takes kernel memory and counts towards a limit per user.
const MAX_FOLDERS: usize = 8_192;
/// The most names that are remembered. Known names distinguish a new file from a replaced one.
const MAX_NAMES: usize = 200_000;
/// The most events of one batch.
const MAX_EVENTS: usize = 16_384;
const BUFFER_BYTES: usize = 64 << 10;
/// How long to wait for the second event of a rename.
const RENAME_PAIR_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// An inotify event.
pub(super) struct Event {
    pub(super) folder: i32,
    pub(super) flags: ReadFlags,
    pub(super) cookie: u32,
    pub(super) name: OsString,
}

/// The watched folders and the names in them.
pub(super) struct Tree {
    inotify: OwnedFd,
    top: PathHandle,
    pub(super) top_watch: i32,
    pub(super) path: PathBuf,
    /// Paths relative to the top, by watch descriptor.
    folders: HashMap<i32, PathBuf>,
    names: HashSet<u64>,
    hasher: RandomState,
    more: bool,
    pub(super) gone: bool,
}

impl Tree {
    /// Watches the folder at a path, with everything below it.
    pub(super) fn watch(roots: &Roots, path: &Path) -> Result<Self, Error> {
        let refused = |error: io::Error| Error::of_path(path, &error);
        let top = roots.find(path, FinalLink::Follow)?;
        if !top.is_directory() {
            return Err(Error::NotAFolder { path: path.display().to_string() });
        }
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let inotify = inotify.map_err(|error| too_many_or(path, error.into()))?;
        let mut tree = Self {
            inotify,
            top,
            top_watch: -1,
            path: path.to_owned(),
            folders: HashMap::new(),
            names: HashSet::new(),
            hasher: RandomState::new(),
            more: false,
            gone: false,
        };
        tree.add(PathBuf::new(), None).map_err(|error| too_many_or(path, error))?;
        let top = tree.folders.iter().find(|(_, way)| way.as_os_str().is_empty());
        tree.top_watch = *top.ok_or_else(|| refused(Errno::ACCESS.into()))?.0;
        Ok(tree)
    }

    /// A descriptor that becomes readable when events are queued.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.inotify.try_clone()
    }

    pub(super) fn folders(&self) -> u64 {
        self.folders.len() as u64
    }

    /// Whether more events are queued after a full batch.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Whether the top folder was removed.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether the top folder has no name any more. inotify reports this only after all handles, including ours, are
    /// closed, so it is checked regularly.
    pub(super) fn is_removed(&self) -> bool {
        fstat(&self.top).is_ok_and(|stat| stat.st_nlink == 0)
    }

    pub(super) fn take_changes(&mut self) -> io::Result<Vec<FileChange>> {
        let mut events = self.read()?;
        let has_half_rename = |events: &[Event]| {
            let is = |flag| events.iter().filter(move |event| event.flags.contains(flag)).count();
            is(ReadFlags::MOVED_FROM) > is(ReadFlags::MOVED_TO)
        };
        if has_half_rename(&events) {
            let mut waiting = [PollFd::new(&self.inotify, PollFlags::IN)];
            if poll(&mut waiting, Some(&RENAME_PAIR_TIMEOUT))? > 0 {
                events.append(&mut self.read()?);
            }
        }
        self.more = events.len() >= MAX_EVENTS;
        Changes::translate(self, events)
    }

    fn read(&self) -> io::Result<Vec<Event>> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut events = Vec::new();
        // Until the buffer is empty, since the rest of it would be lost.
        while events.len() < MAX_EVENTS || !reader.is_buffer_empty() {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
            events.push(Event {
                folder: event.wd(),
                flags: event.events(),
                cookie: event.cookie(),
                name: name.unwrap_or_default(),
            });
        }
        Ok(events)
    }

    /// Watches a folder and everything below it. New names are added to `found`.
    pub(super) fn add(&mut self, relative: PathBuf, mut found: Option<&mut Vec<PathBuf>>) -> io::Result<()> {
        let mut pending = vec![relative];
        while let Some(relative) = pending.pop() {
            // It was removed or replaced meanwhile, is a mount point, or is not readable.
            let Ok(folder) = self.open(&relative) else { continue };
            let name = format!("/proc/self/fd/{}", folder.as_raw_fd());
            let watch = match inotify::add_watch(&self.inotify, name, flags()) {
                Ok(watch) => watch,
                Err(error @ (Errno::NOSPC | Errno::NOMEM)) => return Err(error.into()),
                Err(_) => continue,
            };
            if self.folders.insert(watch, relative.clone()).is_none() && self.folders.len() > MAX_FOLDERS {
                return Err(Errno::NOSPC.into());
            }
            for (name, kind) in entries(&folder).unwrap_or_default() {
                if self.remember(watch, &name)
                    && let Some(found) = &mut found
                {
                    found.push(relative.join(&name));
                }
                if kind == FileType::Directory {
                    pending.push(relative.join(&name));
                }
            }
        }
        Ok(())
    }

    /// Opens a folder of the tree. Fails for links and mount points, and cannot leave the tree.
    fn open(&self, relative: &Path) -> io::Result<File> {
        if relative.as_os_str().is_empty() {
            return self.top.open_for_reading();
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        Ok(openat2(&self.top, relative, flags, Mode::empty(), resolve)?.into())
    }

    /// Stops watching a folder that was moved away, and everything below it.
    pub(super) fn remove(&mut self, relative: &Path) {
        let below: Vec<i32> =
            self.folders.iter().filter(|(_, at)| at.starts_with(relative)).map(|(watch, _)| *watch).collect();
        for watch in below {
            // The folder, and with it the watch, may be gone.
            let _ = inotify::remove_watch(&self.inotify, watch);
            self.folders.remove(&watch);
        }
    }

    /// Removes a folder that the kernel no longer watches.
    pub(super) fn forget_folder(&mut self, watch: i32) {
        self.folders.remove(&watch);
    }

    /// Updates the paths of a renamed folder and of everything below it.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) {
        for relative in self.folders.values_mut() {
            if let Ok(rest) = relative.strip_prefix(from) {
                *relative = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            }
        }
    }

    /// The path of a folder relative to the top.
    pub(super) fn relative_path(&self, watch: i32) -> Option<&Path> {
        self.folders.get(&watch).map(PathBuf::as_path)
    }

    /// Remembers a name. Returns whether it is new.
    pub(super) fn remember(&mut self, watch: i32, name: &OsStr) -> bool {
        let key = self.hasher.hash_one((watch, name));
        if self.names.len() < MAX_NAMES { self.names.insert(key) } else { !self.names.contains(&key) }
    }

    pub(super) fn forget_name(&mut self, watch: i32, name: &OsStr) {
        let key = self.hasher.hash_one((watch, name));
        self.names.remove(&key);
    }
}

fn flags() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR
        | WatchFlags::EXCL_UNLINK
}

fn too_many_or(path: &Path, error: io::Error) -> Error {
    let named = || path.display().to_string();
    match Errno::from_io_error(&error) {
        Some(Errno::NOSPC | Errno::MFILE | Errno::NOMEM) => Error::TooManyFolders {
            path: named(),
            reason: "8,192, or what `fs.inotify` of the kernel leaves",
        },
        _ => Error::of_path(path, &error),
    }
}
