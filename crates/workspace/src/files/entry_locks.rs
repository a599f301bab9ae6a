//! Locks on names in folders. They make the last check of a name and the change of it atomic within this API.
//!
//! ```text
//! device and inode of the folder, name ── hash ──► one of 1,024 stripes ──► one thread of this process
//!                                                            └─ byte of the lock file ──► one process
//! ```
//! A stripe is held for a few system calls only: content is written and synced before, and folders are walked without
//! a lock. Names that hash to the same stripe exclude each other. Programs that change files directly do not take
//! these locks.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{fs::fstat, io::Errno};
use sha1::{Digest, Sha1};

/// The number of stripes, and of bytes used in the lock file.
const STRIPES: u64 = 1_024;
/// The longest wait for a stripe. A stripe that is held longer is held by a call to a file system that does not
/// answer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between attempts to lock a byte that another process holds.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Locks on names in folders. Cheap to clone; clones share the locks.
#[derive(Debug, Clone)]
pub struct EntryLocks {
    stripes: Arc<[Stripe]>,
    file: Option<Arc<File>>,
}

/// An open folder and a name in it.
pub(crate) type Entry<'a> = (BorrowedFd<'a>, &'a OsStr);

#[derive(Debug, Default)]
struct Stripe {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// Releases the locked names on drop.
#[derive(Debug)]
pub(crate) struct EntryGuard<'a> {
    _stripes: Vec<StripeGuard<'a>>,
}

#[derive(Debug)]
struct StripeGuard<'a> {
    stripe: &'a Stripe,
    /// The lock file and the locked byte, once it is locked.
    byte: Option<(&'a File, u64)>,
}

impl Default for EntryLocks {
    /// Locks within this process only.
    fn default() -> Self {
        Self { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), file: None }
    }
}

impl EntryLocks {
    /// Locks shared with all processes that open the same file. The file is created if it is missing.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub fn in_file(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        Ok(Self { file: Some(Arc::new(file)), ..Self::default() })
    }

    /// Locks these names. A thread that holds a lock must not call this again: two threads could deadlock.
    ///
    /// # Errors
    /// `ETIMEDOUT` if a lock is held for longer than [`LOCK_TIMEOUT`], and any other error of the kernel.
    pub(crate) fn lock(&self, entries: &[Entry<'_>]) -> io::Result<EntryGuard<'_>> {
        let mut wanted = entries.iter().map(|entry| stripe_of(entry)).collect::<io::Result<Vec<_>>>()?;
        // Every process locks in the same order. Two names may share a stripe.
        wanted.sort_unstable();
        wanted.dedup();
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let held = wanted.into_iter().map(|number| self.hold_stripe(number, deadline));
        Ok(EntryGuard { _stripes: held.collect::<io::Result<_>>()? })
    }

    fn hold_stripe(&self, number: u64, deadline: Instant) -> io::Result<StripeGuard<'_>> {
        let stripe = usize::try_from(number).ok().and_then(|number| self.stripes.get(number));
        let stripe = stripe.ok_or(Errno::INVAL)?;
        stripe.take(deadline)?;
        let mut held = StripeGuard { stripe, byte: None };
        if let Some(file) = &self.file {
            take_byte(file, number, deadline)?;
            held.byte = Some((file, number));
        }
        Ok(held)
    }
}

impl Stripe {
    fn take(&self, deadline: Instant) -> io::Result<()> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.freed.wait_timeout_while(taken, left, |taken| *taken);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(Errno::TIMEDOUT.into());
        }
        *taken = true;
        Ok(())
    }
}

impl Drop for StripeGuard<'_> {
    fn drop(&mut self) {
        if let Some((file, number)) = self.byte {
            // Fails only for a closed descriptor.
            let _ = set_byte(file, number, libc::F_UNLCK);
        }
        *self.stripe.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.stripe.freed.notify_one();
    }
}

/// Must be the same in every process and build: servers of two versions may run at the same time.
fn stripe_of((folder, name): &Entry<'_>) -> io::Result<u64> {
    let stat = fstat(folder)?;
    let mut hash = Sha1::new();
    hash.update(stat.st_dev.to_le_bytes());
    hash.update(stat.st_ino.to_le_bytes());
    hash.update(name.as_bytes());
    let first = hash.finalize().iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte));
    Ok(first % STRIPES)
}

/// Polls for a byte. Only needed while one server process replaces another.
fn take_byte(file: &File, number: u64, deadline: Instant) -> io::Result<()> {
    loop {
        match set_byte(file, number, libc::F_WRLCK) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {}
            outcome => return outcome,
        }
        if Instant::now() >= deadline {
            return Err(Errno::TIMEDOUT.into());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Locks or unlocks one byte for this open file description (fcntl(2), `F_OFD_SETLK`). The kernel unlocks it when the
/// process ends.
fn set_byte(file: &File, number: u64, kind: libc::c_int) -> io::Result<()> {
    let overflow = |_| io::Error::from(Errno::OVERFLOW);
    let lock = libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(overflow)?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(overflow)?,
        l_start: libc::off_t::try_from(number).map_err(overflow)?,
        l_len: 1,
        // Must be 0 for these locks.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while `file` is borrowed, and the kernel only reads the structure.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::AsFd,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    /// Tries to lock these names for a short time.
    fn try_lock(locks: &EntryLocks, entries: &[Entry<'_>]) -> io::Result<()> {
        let mut numbers: Vec<_> = entries.iter().map(|entry| stripe_of(entry).unwrap()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let deadline = Instant::now() + SOON;
        let held: io::Result<Vec<_>> =
            numbers.into_iter().map(|number| locks.hold_stripe(number, deadline)).collect();
        held.map(drop)
    }

    fn is_held(locks: &EntryLocks, entry: Entry<'_>) -> bool {
        match try_lock(locks, &[entry]) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
                true
            }
        }
    }

    #[test]
    fn a_name_is_held_once_in_a_process_and_by_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let folder = File::open(dir.path()).unwrap();
        let (name, other) = ((folder.as_fd(), OsStr::new("name")), (folder.as_fd(), OsStr::new("other")));
        let file = dir.path().join("locks");
        // Each one opens the file itself, as two processes do.
        let (ours, theirs) = (EntryLocks::in_file(&file).unwrap(), EntryLocks::in_file(&file).unwrap());
        let memory = EntryLocks::default();
        let held = ours.lock(&[name]).unwrap();
        let held_in_memory = memory.lock(&[name]).unwrap();
        assert!(is_held(&ours, name) && is_held(&theirs, name) && is_held(&memory.clone(), name));
        assert!(!is_held(&EntryLocks::default(), name), "the control: other locks");
        assert!(!is_held(&ours, other) && !is_held(&theirs, other) && !is_held(&memory, other));
        drop((held, held_in_memory));
        assert!(!is_held(&ours, name) && !is_held(&theirs, name) && !is_held(&memory, name));
    }

    #[test]
    fn a_folder_is_the_same_by_each_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("folder", dir.path().join("link")).unwrap();
        let [folder, link] = ["folder", "link"].map(|name| File::open(dir.path().join(name)).unwrap());
        let locks = EntryLocks::default();
        let _held = locks.lock(&[(folder.as_fd(), OsStr::new("name"))]).unwrap();
        assert!(is_held(&locks, (link.as_fd(), OsStr::new("name"))));
    }

    #[test]
    fn two_names_with_one_stripe_are_held_together() {
        let dir = tempfile::tempdir().unwrap();
        let folder = File::open(dir.path()).unwrap();
        let names: Vec<String> = (0..=STRIPES).map(|n| n.to_string()).collect();
        let number = |name: &String| stripe_of(&(folder.as_fd(), OsStr::new(name))).unwrap();
        let mut pairs = names.iter().flat_map(|a| names.iter().map(move |b| (a, b)));
        // There are more names than stripes.
        let (a, b) = pairs.find(|(a, b)| a != b && number(a) == number(b)).unwrap();
        let locks = EntryLocks::in_file(&dir.path().join("locks")).unwrap();
        let (a, b) = ((folder.as_fd(), OsStr::new(a)), (folder.as_fd(), OsStr::new(b)));
        for both in [[a, b], [a, a]] {
            try_lock(&locks, &both).unwrap();
            drop(locks.lock(&both).unwrap());
            assert!(!is_held(&locks, a) && !is_held(&locks, b));
        }
    }

    #[test]
    fn pairs_in_opposite_orders_do_not_wait_for_each_other_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let folder = File::open(dir.path()).unwrap();
        let (a, b) = ((folder.as_fd(), OsStr::new("a")), (folder.as_fd(), OsStr::new("b")));
        let file = dir.path().join("locks");
        let (ours, theirs) = (EntryLocks::in_file(&file).unwrap(), EntryLocks::in_file(&file).unwrap());
        let inside = AtomicBool::new(false);
        thread::scope(|threads| {
            for (locks, pair) in [(&ours, [a, b]), (&ours, [b, a]), (&theirs, [a, b]), (&theirs, [b, a])] {
                let inside = &inside;
                threads.spawn(move || {
                    for _ in 0..200 {
                        let _held = locks.lock(&pair).unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                        inside.store(false, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
