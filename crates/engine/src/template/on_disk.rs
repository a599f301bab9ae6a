//! A file of a template that stays on disk, held open, where whoever may write there can still change it.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use super::{Fault, digest};

/// Times of files advance with the kernel's clock tick, of 10 ms at the longest. Two changes within one look like one.
const TICK: Duration = Duration::from_millis(10);

/// A file that was compared with its checksum, and that tells whether it is still what it was then.
#[derive(Debug)]
pub(super) struct OnDisk {
    file: File,
    sha256: String,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Whole(Facts),
    /// For good: a guest may have read what was wrong, also where it was put right since.
    Damaged(String),
}

/// What no change of a file's content leaves as it was. The time of change is the one that nobody can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Facts {
    fn of(found: &Metadata) -> Self {
        Self {
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// What says without a look at the content that it is not what it was.
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

/// Why a file cannot be used.
pub(super) enum Unfit {
    /// It is not what it should be.
    Damaged(String),
    /// This machine lacks something.
    Io(io::Error),
}

impl OnDisk {
    /// Opens it and compares it with its checksum.
    pub(super) fn open(path: &Path, sha256: &str) -> Result<Self, Unfit> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Unfit::Damaged(error.to_string()));
            }
            other => other.map_err(Unfit::Io)?,
        };
        let facts = compare(&file, sha256).map_err(Unfit::Damaged)?;
        Ok(Self { file, sha256: sha256.to_owned(), state: Mutex::new(State::Whole(facts)) })
    }

    /// The file that was checked, whatever has its name by now.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether it is what it was, and in what way not. One system call, unless its inode changed and nothing tells in what
    /// way: its name removed or its mode set, or its content changed and the time of that set back. Then it is read again,
    /// which takes a second.
    pub(super) fn check(&self) -> Result<(), String> {
        // Held while it is read: who asks meanwhile needs that answer too.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &*state {
            State::Whole(before) => *before,
            State::Damaged(reason) => return Err(reason.clone()),
        };
        let found = match self.file.metadata() {
            Ok(found) => Facts::of(&found),
            Err(error) => return Err(error.to_string()),
        };
        if found == before {
            return Ok(());
        }
        let outcome = match found.difference_from(&before) {
            Some(difference) => Err(difference),
            None => compare(&self.file, &self.sha256),
        };
        match outcome {
            Ok(facts) => {
                *state = State::Whole(facts);
                Ok(())
            }
            Err(reason) => {
                *state = State::Damaged(reason.clone());
                Err(reason)
            }
        }
    }
}

/// Compares a file with its checksum, and gives the facts that stand for this content.
fn compare(file: &File, sha256: &str) -> Result<Facts, String> {
    let facts = || file.metadata().map(|found| Facts::of(&found)).map_err(|error| error.to_string());
    let before = {
        wait_for_the_tick_after(facts()?);
        facts()?
    };
    let found = match digest(file, |_| Ok(())) {
        Ok(found) => found,
        Err(Fault::Read(error) | Fault::Copy(error)) => return Err(error.to_string()),
    };
    if found != *sha256 {
        return Err(format!("SHA-256 is {found}, should be {sha256}"));
    }
    let after = facts()?;
    match after.difference_from(&before) {
        Some(difference) => Err(difference),
        // What changed of its inode while it was read is looked at by the next check.
        None => Ok(before),
    }
}

/// What is changed from now on gets another time than the last change has.
fn wait_for_the_tick_after(facts: Facts) {
    let (seconds, nanoseconds) = facts.changed;
    let changed = u64::try_from(seconds).ok().zip(u32::try_from(nanoseconds).ok());
    let changed = changed.map(|(seconds, nanoseconds)| Duration::new(seconds, nanoseconds));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok();
    // A time that lies ahead is of a clock that was set, and none that a change gets now.
    if let Some(age) = now.zip(changed).and_then(|(now, changed)| now.checked_sub(changed))
        && age < 2 * TICK
    {
        thread::sleep(2 * TICK - age);
    }
}
