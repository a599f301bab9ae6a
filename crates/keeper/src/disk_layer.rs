//! The private disk layer of a VM: an unnamed copy, which the kernel deletes when its last descriptor is closed.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, fchown},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, SeekFrom as Seek64, copy_file_range, makedev, open, seek},
    io::Errno,
};

use serde::{Deserialize, Serialize};

use crate::Error;

/// Identifies an unnamed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// # Errors
    /// The system call failed.
    pub fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }

    /// Of a file as `/proc/PID/maps` describes it: the numbers of its device, and its inode.
    pub(crate) fn from_numbers(major: u32, minor: u32, inode: u64) -> Self {
        Self { device: makedev(major, minor), inode }
    }

    /// The id of no file.
    #[cfg(test)]
    pub(crate) fn fake(inode: u64) -> Self {
        Self { device: 0, inode }
    }
}

/// Finds the layer among the open files of a process. `None` if it has closed it.
pub(crate) fn find(pid: u32, id: FileId) -> Option<File> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    descriptors.map(|entry| entry.path()).find_map(|path| {
        // Checked before it is opened: opening a device or a pipe may have side effects.
        let found = fs::metadata(&path).ok()?;
        if (FileId { device: found.dev(), inode: found.ino() }) != id {
            return None;
        }
        File::open(&path).ok().filter(|file| FileId::of(file).is_ok_and(|opened| opened == id))
    })
}

/// Copies a layer as a sparse file: of any size usually some MB are data, and only that is copied.
///
/// # Errors
/// The disk is full, or the copy failed. Nothing is left behind then.
pub(crate) fn copy(source: &File, folder: &Path, uid: u32) -> Result<File, Error> {
    let copy = || {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let target = File::from(open(folder, flags, Mode::from_raw_mode(0o600))?);
        copy_data(source, &target)?;
        fchown(&target, Some(uid), Some(uid))?;
        io::Result::Ok(target)
    };
    copy().map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull,
        _ => Error::io(format!("disk layer in {}", folder.display()))(error),
    })
}

fn copy_data(source: &File, target: &File) -> io::Result<()> {
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let mut at = 0;
    while at < length {
        let begin = match seek(source, Seek64::Data(at)) {
            // Only a hole follows.
            Err(Errno::NXIO) => break,
            other => other?,
        };
        let end = seek(source, Seek64::Hole(begin))?;
        copy_extent(source, target, begin, end)?;
        at = end;
    }
    Ok(())
}

fn copy_extent(source: &File, target: &File, mut at: u64, end: u64) -> io::Result<()> {
    while at < end {
        let (mut from, mut to) = (at, at);
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
        match copy_file_range(source, Some(&mut from), target, Some(&mut to), wanted) {
            // The file was truncated meanwhile.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => at += copied as u64,
            // Different file systems, or one without support.
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return copy_through_user_space(source, target, at, end);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_through_user_space(mut source: &File, mut target: &File, begin: u64, end: u64) -> io::Result<()> {
    source.seek(SeekFrom::Start(begin))?;
    target.seek(SeekFrom::Start(begin))?;
    let copied = io::copy(&mut source.take(end - begin), &mut target)?;
    target.flush()?;
    if copied == end - begin { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;

    fn read(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn own_uid() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn holes_stay_holes_and_no_name_is_left() {
        holes_stay_holes(&tempfile::tempfile().unwrap());
        let in_memory = rustix::fs::memfd_create("layer", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        holes_stay_holes(&in_memory.into());
    }

    fn holes_stay_holes(source: &File) {
        let dir = tempfile::tempdir().unwrap();
        source.set_len(10 << 30).unwrap();
        source.write_all_at(b"begin", 0).unwrap();
        source.write_all_at(b"middle", 5 << 30).unwrap();
        let target = copy(source, dir.path(), own_uid()).unwrap();
        let found = target.metadata().unwrap();
        assert_eq!(found.len(), 10 << 30);
        assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
        assert_eq!((found.mode() & 0o777, found.nlink()), (0o600, 0));
        let mut middle = [0; 6];
        target.read_exact_at(&mut middle, 5 << 30).unwrap();
        assert_eq!(&middle, b"middle");
        let id = FileId::of(&target).unwrap();
        assert_eq!(FileId::of(&find(std::process::id(), id).unwrap()).unwrap(), id);
        assert!(find(std::process::id(), FileId { inode: 0, ..id }).is_none());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn both_copy_methods_give_equal_files(
            length in 1_u64..300_000,
            runs in prop::collection::vec((0_u64..300_000, 1_usize..20_000, 1_u8..), 0..6),
        ) {
            let source = tempfile::tempfile().unwrap();
            source.set_len(length).unwrap();
            for (at, size, byte) in runs {
                let size = size.min(usize::try_from(length.saturating_sub(at)).unwrap());
                source.write_all_at(&vec![byte; size], at).unwrap();
            }
            let dir = tempfile::tempdir().unwrap();
            let target = copy(&source, dir.path(), own_uid()).unwrap();
            prop_assert_eq!(read(&target), read(&source));
            let by_hand = tempfile::tempfile().unwrap();
            copy_through_user_space(&source, &by_hand, 0, length).unwrap();
            prop_assert_eq!(read(&by_hand), read(&source));
        }
    }
}
