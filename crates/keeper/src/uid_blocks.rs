//! Divides the user ids of VMs between the data directories of one machine, so that two keepers never run two VMs under
//! the same user id.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use skep_jail::UidRange;

use crate::{
    DataDir, Error,
    data_dir::{RUN_DIR, create_dir_all, remove_file},
};

/// User ids per data directory: more than VMs, so that an id is not reused soon.
const UIDS_PER_BLOCK: u32 = 4096;

/// A block of user ids, locked until it is released or this process ends. The block of a crashed keeper stays reserved
/// while that keeper's sockets exist: its VMs may still run.
#[derive(Debug)]
pub(crate) struct UidBlock {
    pub(crate) uids: UidRange,
    path: PathBuf,
    _locked: File,
}

impl UidBlock {
    pub(crate) fn take(range: UidRange, data_dir: &DataDir) -> Result<Self, Error> {
        Self::take_below(Path::new(RUN_DIR), range, data_dir.hash())
    }

    fn take_below(run_dir: &Path, range: UidRange, hash: &str) -> Result<Self, Error> {
        let folder = run_dir.join("uids");
        create_dir_all(run_dir, 0o755)?;
        create_dir_all(&folder, 0o700)?;
        let blocks = range.count.div_ceil(UIDS_PER_BLOCK);
        // Each data directory starts its search at another block, so that most find a free one at once.
        let first = u32::from_str_radix(hash.get(..7).unwrap_or_default(), 16).unwrap_or(0);
        let path_of = |block: u32| folder.join((range.base + block * UIDS_PER_BLOCK).to_string());
        let ours = |block: &u32| fs::read_to_string(path_of(*block)).is_ok_and(|owner| owner == hash);
        let found = (0..blocks).find(ours);
        // The block that this directory had before comes first: VMs of an earlier keeper may still run with its ids.
        for block in found.into_iter().chain((0..blocks).map(|step| first.wrapping_add(step) % blocks)) {
            let base = range.base + block * UIDS_PER_BLOCK;
            let path = path_of(block);
            if let Some(locked) = try_lock(run_dir, &path, hash)? {
                let count = UIDS_PER_BLOCK.min(range.count - block * UIDS_PER_BLOCK);
                return Ok(Self { uids: UidRange { base, count }, path, _locked: locked });
            }
        }
        Err(Error::NoUids)
    }

    /// Releases the block. The file is removed while it is locked, so it cannot be another keeper's.
    pub(crate) fn release(self) -> Result<(), Error> {
        remove_file(&self.path)
    }
}

/// Removes the block file that a crashed keeper of this data directory left.
pub(crate) fn remove_stale(data_dir: &DataDir) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(Path::new(RUN_DIR).join("uids")) else { return Ok(()) };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let Ok(mut file) = File::open(&path) else { continue };
        let mut owner = String::new();
        let ours = file.read_to_string(&mut owner).is_ok() && owner == data_dir.hash();
        if ours && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_file(&path)?;
        }
    }
    Ok(())
}

fn try_lock(run_dir: &Path, path: &Path, hash: &str) -> Result<Option<File>, Error> {
    let failed = || Error::io(path.display().to_string());
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let mut file = file.map_err(failed())?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        other => other.map_err(|error| failed()(error.into()))?,
    }
    // The previous owner removed the file between our open and our lock.
    if fs::metadata(path).ok().map(|found| found.ino()) != file.metadata().ok().map(|own| own.ino()) {
        return Ok(None);
    }
    let mut owner = String::new();
    file.read_to_string(&mut owner).map_err(failed())?;
    if !owner.is_empty() && owner != hash && run_dir.join(&owner).exists() {
        return Ok(None);
    }
    // An unchanged file is not written again: on a full disk the write fails, and a keeper that fails to start ends the VMs that it
    // should take over.
    if owner == hash {
        return Ok(Some(file));
    }
    let mut write = || {
        file.set_len(0)?;
        std::io::Seek::rewind(&mut file)?;
        file.write_all(hash.as_bytes())
    };
    write().map_err(failed())?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: UidRange = UidRange { base: 10_000, count: 2 * UIDS_PER_BLOCK };

    #[test]
    fn two_directories_have_different_users_and_a_third_is_refused() {
        let run_dir = tempfile::tempdir().unwrap();
        let take = |hash| UidBlock::take_below(run_dir.path(), RANGE, hash);
        let first = take("000000000000").unwrap();
        let second = take("000000000002").unwrap();
        assert_eq!((first.uids.base, second.uids.base), (10_000, 10_000 + UIDS_PER_BLOCK));
        assert!(matches!(take("000000000001"), Err(Error::NoUids)));
        first.release().unwrap();
        assert_eq!(take("000000000001").unwrap().uids.base, 10_000);
    }

    #[test]
    fn a_block_that_is_taken_again_is_not_written_again() {
        let run_dir = tempfile::tempdir().unwrap();
        let take = || UidBlock::take_below(run_dir.path(), RANGE, "000000000000").unwrap();
        let path = take().path;
        let old = std::time::SystemTime::UNIX_EPOCH;
        File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        assert_eq!(take().path, path);
        assert_eq!(path.metadata().unwrap().modified().unwrap(), old);
    }

    #[test]
    fn the_block_of_a_crashed_keeper_stays_reserved() {
        let run_dir = tempfile::tempdir().unwrap();
        let take = |hash| UidBlock::take_below(run_dir.path(), RANGE, hash).unwrap().uids.base;
        let crashed = take("000000000000");
        fs::create_dir(run_dir.path().join("000000000000")).unwrap();
        assert_ne!(take("000000000002"), crashed);
        assert_eq!(take("000000000000"), crashed);
        // Also if an earlier block is free by now.
        let second = take("000000000002");
        fs::create_dir(run_dir.path().join("000000000002")).unwrap();
        fs::remove_dir(run_dir.path().join("000000000000")).unwrap();
        fs::remove_file(run_dir.path().join("uids").join(crashed.to_string())).unwrap();
        assert_eq!(UidBlock::take_below(run_dir.path(), RANGE, "000000000002").unwrap().uids.base, second);
        fs::create_dir(run_dir.path().join("000000000000")).unwrap();
        assert_eq!(take("000000000000"), crashed);
        // After the cleanup, other directories may take it.
        fs::remove_dir(run_dir.path().join("000000000000")).unwrap();
        assert_eq!(take("000000000004"), crashed);
    }
}
