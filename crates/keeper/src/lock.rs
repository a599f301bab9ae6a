//! The lock that allows one keeper per data directory.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, test_kill_process},
};
use serde::{Deserialize, Serialize};

use crate::{DataDir, Error, data_dir::remove_file, privileges::has_root};

/// How long to wait for children that a killed keeper was starting: until their `execve` they hold a copy of its lock.
const INHERITED_LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts to lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The keeper that has locked a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Where its service listens. `None` until it does.
    pub address: Option<String>,
}

/// The current holder of a data directory's lock.
///
/// # Errors
/// The lock cannot be opened.
pub fn holder(data_dir: &DataDir) -> Result<Option<Holder>, Error> {
    match Lock::take(data_dir) {
        Ok(lock) => lock.release().map(|()| None),
        Err(Error::Locked { pid, address, .. }) => Ok(Some(Holder { pid, address: Some(address) })),
        Err(error) => Err(error),
    }
}

/// Prevents servers from using a data directory until it is dropped.
#[derive(Debug)]
pub struct LockGuard(Option<Lock>);

/// Locks a data directory as a server does. Others that try meanwhile get `address` in their error.
///
/// # Errors
/// [`Error::Locked`] while a server runs there or another process holds it.
pub fn lock_data_dir(data_dir: &DataDir, address: &str) -> Result<LockGuard, Error> {
    let lock = Lock::take(data_dir)?;
    lock.publish_address(address)?;
    Ok(LockGuard(Some(lock)))
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(Lock::release) {
            tracing::warn!(%error, "the released lock file could not be removed: {error}");
        }
    }
}

/// Locked until it is released or this process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// # Errors
    /// [`Error::Locked`] if another process holds the lock.
    pub(crate) fn take(data_dir: &DataDir) -> Result<Self, Error> {
        let lock = Self::take_file(data_dir)?;
        match refuse_earlier_server(data_dir) {
            Ok(()) => Ok(lock),
            Err(error) => lock.release().and(Err(error)),
        }
    }

    fn take_file(data_dir: &DataDir) -> Result<Self, Error> {
        let path = data_dir.keeper().join("lock");
        let failed = || Error::io(path.display().to_string());
        let begun = Instant::now();
        loop {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
            let mut file = file.map_err(failed())?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let holder = read_holder(&mut file);
                    if holder.as_ref().is_some_and(is_gone) && begun.elapsed() < INHERITED_LOCK_TIMEOUT {
                        sleep(RETRY_INTERVAL);
                        continue;
                    }
                    return Err(locked(data_dir, holder));
                }
                other => other.map_err(|error| failed()(error.into()))?,
            }
            // The previous holder may have removed the file between our open and our lock. Then our lock is on a file
            // that other processes cannot find.
            let same =
                path.metadata().ok().map(|found| found.ino()) == file.metadata().ok().map(|own| own.ino());
            if same {
                let lock = Self { file, path };
                lock.write(None)?;
                return Ok(lock);
            }
        }
    }

    /// Publishes the address of the service in the lock file.
    pub(crate) fn publish_address(&self, address: &str) -> Result<(), Error> {
        self.write(Some(address.to_owned()))
    }

    fn write(&self, address: Option<String>) -> Result<(), Error> {
        let holder = Holder { pid: std::process::id(), address };
        let write = || -> std::io::Result<()> {
            let mut file = &self.file;
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(&serde_json::to_vec(&holder)?)
        };
        write().map_err(Error::io(self.path.display().to_string()))
    }

    /// Releases the lock. The file is removed while it is locked, so it cannot be another keeper's.
    pub(crate) fn release(self) -> Result<(), Error> {
        remove_file(&self.path)
    }
}

/// Refuses a directory that a server of an earlier version uses. Without root these had no keeper, and their lock was
/// another file, which is removed unless a process holds it.
fn refuse_earlier_server(data_dir: &DataDir) -> Result<(), Error> {
    // The file is in the server's part, where root must not open anything.
    if has_root() {
        return Ok(());
    }
    let path = data_dir.server().join("lock");
    let Ok(mut file) = File::open(&path) else { return Ok(()) };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        return remove_file(&path);
    }
    let mut text = String::new();
    let _ = file.read_to_string(&mut text);
    // `process PID at ADDRESS`
    let mut values = text.split_whitespace().skip(1).step_by(2);
    let pid = values.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
    Err(locked(data_dir, Some(Holder { pid, address: values.next().map(str::to_owned) })))
}

/// `None` while the holder is writing.
fn read_holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok().and_then(|_| serde_json::from_str(&text).ok())
}

/// Whether the holder's process does not exist any more.
fn is_gone(holder: &Holder) -> bool {
    let pid = i32::try_from(holder.pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

fn locked(data_dir: &DataDir, holder: Option<Holder>) -> Error {
    Error::Locked {
        dir: data_dir.path().to_owned(),
        pid: holder.as_ref().map_or(0, |holder| holder.pid),
        address: holder.and_then(|holder| holder.address).unwrap_or_else(|| "an unknown address".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn locking_a_held_directory_fails_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        let held = lock_data_dir(&data_dir, "no address (a test is at work)").unwrap();
        let error = lock_data_dir(&data_dir, "another").unwrap_err().to_string();
        assert!(error.contains("a test is at work"), "{error}");
        drop(held);
        lock_data_dir(&data_dir, "another").unwrap();
    }

    #[test]
    fn taking_the_lock_waits_for_children_of_a_killed_keeper() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        let mut killed = Command::new("true").spawn().unwrap();
        killed.wait().unwrap();
        let lock = Lock::take(&data_dir).unwrap();
        let holder = Holder { pid: killed.id(), address: None };
        std::fs::write(&lock.path, serde_json::to_vec(&holder).unwrap()).unwrap();
        // A copy of the lock that a child still holds, as between its fork and its execve.
        let inherited = rustix::io::dup(&lock.file).unwrap();
        let mut child = Command::new("sleep").arg("0.5").spawn().unwrap();
        drop((lock, inherited));
        Lock::take(&data_dir).unwrap().release().unwrap();
        // A process that ends has closed its descriptors shortly before it can be awaited.
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", child.id()));
        assert_eq!(descriptors.map_or(0, Iterator::count), 0, "the child still had the lock");
        child.wait().unwrap();
    }

    #[test]
    fn a_second_keeper_gets_pid_and_address_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        assert_eq!(holder(&data_dir).unwrap(), None);
        let lock = Lock::take(&data_dir).unwrap();
        lock.publish_address("127.0.0.1:7700").unwrap();
        let error = Lock::take(&data_dir).unwrap_err().to_string();
        assert!(
            error.contains(&std::process::id().to_string()) && error.contains("127.0.0.1:7700"),
            "{error}"
        );
        lock.release().unwrap();
        assert!(!data_dir.keeper().join("lock").exists());
        Lock::take(&data_dir).unwrap().release().unwrap();
    }
}
