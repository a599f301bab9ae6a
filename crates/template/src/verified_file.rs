//! A template file that stays on disk and is held open. Other processes may change it, so it is checked before each
//! use.

use std::{
    collections::BTreeMap,
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, SystemTime},
};

use crate::{
    checksum::{ChecksumError, checksum},
    damage::{FileError, open_file},
};

/// File timestamps advance with the kernel's clock tick of at most 10 ms. Two changes within one tick have equal times.
const MAX_CLOCK_TICK: Duration = Duration::from_millis(10);

/// A file whose checksum was verified, and that can be checked for later changes.
#[derive(Debug)]
pub(crate) struct VerifiedFile {
    file: File,
    sha256: String,
    state: Mutex<State>,
}

/// A file and the checksum that it must have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileKey {
    device: u64,
    inode: u64,
    sha256: String,
}

impl FileKey {
    pub(crate) fn of(file: &File, sha256: &str) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { device: found.dev(), inode: found.ino(), sha256: sha256.to_owned() })
    }
}

/// The files that templates hold open.
static SHARED: Mutex<BTreeMap<FileKey, Weak<VerifiedFile>>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
enum State {
    Intact(FileStamp),
    /// Final, even if the content is restored: a guest may have read the damaged content.
    Damaged(String),
}

/// File metadata that changes with the content. Unlike `modified`, `changed` cannot be set by a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self {
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// A difference that proves a change of the content without reading it.
    fn difference_from(&self, before: &Self) -> Option<String> {
        if self.bytes != before.bytes {
            return Some(format!(
                "it has {} bytes, and had {} when it was checked",
                self.bytes, before.bytes
            ));
        }
        let written = self.modified != before.modified;
        written.then(|| "it was written to since it was checked".to_owned())
    }
}

impl VerifiedFile {
    /// Opens the file and verifies its checksum.
    pub(crate) fn open(path: &Path, sha256: &str) -> Result<Self, FileError> {
        let file = open_file(path)?;
        let facts = verify(&file, sha256).map_err(FileError::Damaged)?;
        Ok(Self { file, sha256: sha256.to_owned(), state: Mutex::new(State::Intact(facts)) })
    }

    /// Like [`Self::open`], but returns the file of another template if that is the same one: the snapshots of a template
    /// have links to its files. That file was verified when it was opened, and is checked before each use.
    pub(crate) fn open_shared(path: &Path, sha256: &str) -> Result<Arc<Self>, FileError> {
        let key = FileKey::of(&open_file(path)?, sha256).map_err(FileError::Io)?;
        let held = SHARED.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade);
        if let Some(file) = held.filter(|file| file.check().is_ok()) {
            return Ok(file);
        }
        // Without the lock, so that templates are loaded at the same time.
        let opened = Arc::new(Self::open(path, sha256)?);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, file| file.strong_count() > 0);
        shared.insert(key, Arc::downgrade(&opened));
        Ok(opened)
    }

    /// Performs a change that gives the file another number of links and leaves its content as it is, so that the next check
    /// does not read the file again.
    fn while_links_change<T>(&self, change: impl FnOnce() -> T) -> T {
        let stamp = || self.file.metadata().ok().map(|found| FileStamp::of(&found));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_intact = matches!(&*state, State::Intact(before) if stamp() == Some(*before));
        let outcome = change();
        if let State::Intact(before) = &mut *state
            && let Some(after) = stamp().filter(|after| is_intact && after.difference_from(before).is_none())
        {
            *before = after;
        }
        outcome
    }

    /// The verified file, even if its path refers to another file by now.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Checks that the content is unchanged. Usually one system call. If only the ctime changed, the cause may be
    /// harmless, such as a removed link or a new mode, or a content change whose mtime was set back; then the file is
    /// read again, which takes a fraction of a second.
    pub(crate) fn check(&self) -> Result<(), String> {
        // Locked while the file is read: concurrent callers need the same result.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &*state {
            State::Intact(before) => *before,
            State::Damaged(reason) => return Err(reason.clone()),
        };
        let found = match self.file.metadata() {
            Ok(found) => FileStamp::of(&found),
            Err(error) => return Err(error.to_string()),
        };
        if found == before {
            return Ok(());
        }
        let outcome = match found.difference_from(&before) {
            Some(difference) => Err(difference),
            None => verify(&self.file, &self.sha256),
        };
        match outcome {
            Ok(facts) => {
                *state = State::Intact(facts);
                Ok(())
            }
            Err(reason) => {
                *state = State::Damaged(reason.clone());
                Err(reason)
            }
        }
    }
}

/// Performs a change that adds or removes a link of the file at this path. If a template holds that file open, it stays verified:
/// otherwise the changed ctime would be a reason to read it again.
pub(crate) fn while_links_change<T>(path: &Path, change: impl FnOnce() -> T) -> T {
    let held = path.metadata().ok().and_then(|found| {
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |key: &FileKey| (key.device, key.inode) == (found.dev(), found.ino());
        shared.iter().find(|(key, _)| is_meant(key)).and_then(|(_, file)| file.upgrade())
    });
    match held {
        Some(file) => file.while_links_change(change),
        None => change(),
    }
}

/// Verifies the checksum of a file, and returns the metadata that belongs to this content.
fn verify(file: &File, sha256: &str) -> Result<FileStamp, String> {
    let facts = || file.metadata().map(|found| FileStamp::of(&found)).map_err(|error| error.to_string());
    let before = {
        wait_for_next_tick(facts()?);
        facts()?
    };
    let found = match checksum(file, |_, _| Ok(())) {
        Ok(found) => found,
        Err(ChecksumError::Read(error) | ChecksumError::Copy(error)) => return Err(error.to_string()),
    };
    if found != *sha256 {
        return Err(format!("SHA-256 is {found}, should be {sha256}"));
    }
    let after = facts()?;
    match after.difference_from(&before) {
        Some(difference) => Err(difference),
        // With the metadata from before the read, the next check notices an inode change during it.
        None => Ok(before),
    }
}

/// Waits until a new change gets a later timestamp than the last change.
fn wait_for_next_tick(facts: FileStamp) {
    let (seconds, nanoseconds) = facts.changed;
    let changed = u64::try_from(seconds).ok().zip(u32::try_from(nanoseconds).ok());
    let changed = changed.map(|(seconds, nanoseconds)| Duration::new(seconds, nanoseconds));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok();
    // A time in the future is from before the clock was set back; a new change cannot get it.
    if let Some(age) = now.zip(changed).and_then(|(now, changed)| now.checked_sub(changed))
        && age < 2 * MAX_CLOCK_TICK
    {
        thread::sleep(2 * MAX_CLOCK_TICK - age);
    }
}
