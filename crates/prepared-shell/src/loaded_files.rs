//! The files that a prepared shell was loaded from. If one of them has changed, the shell differs from a new
//! `/bin/sh`.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Files that the loader reads without mapping them, and the standard input. They need not exist.
const READ_BY_LOADER: [&str; 4] = ["/bin/sh", "/etc/ld.so.cache", "/etc/ld.so.preload", "/dev/null"];

/// Files and their state when the shell was loaded.
#[derive(Debug)]
pub(crate) struct LoadedFiles(Vec<(PathBuf, Option<Stamp>)>);

#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl LoadedFiles {
    /// The files that a process has mapped, according to `/proc/PID/maps`, and those that its loader read.
    pub(crate) fn of(maps: &str) -> io::Result<Self> {
        let mut paths: Vec<PathBuf> = READ_BY_LOADER.map(PathBuf::from).into();
        for path in maps.lines().filter_map(|line| Some(&line[line.find('/')?..])) {
            if path.ends_with(" (deleted)") {
                return Err(io::Error::other("a file of the shell was replaced while it was started"));
            }
            paths.push(path.into());
        }
        paths.sort_unstable();
        paths.dedup();
        Ok(Self(paths.into_iter().map(|path| (stamp(&path), path)).map(|(at, path)| (path, at)).collect()))
    }

    /// Whether no file has changed.
    pub(crate) fn are_unchanged(&self) -> bool {
        self.0.iter().all(|(path, before)| stamp(path) == *before)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let of = fs::metadata(path).ok()?;
    Some(Stamp {
        file: (of.dev(), of.ino()),
        size: of.size(),
        modified: (of.mtime(), of.mtime_nsec()),
        changed: (of.ctime(), of.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lib");
        fs::write(&path, "old").unwrap();
        let maps =
            format!("7f00-7f01 r-xp 0 fe:00 7    {}\n7f02-7f03 rw-p 0 0:0 0  [stack]\n", path.display());
        let files = LoadedFiles::of(&maps).unwrap();
        assert!(files.are_unchanged());
        fs::write(dir.path().join("new"), "new").unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(!files.are_unchanged());
        assert!(LoadedFiles::of(&maps).unwrap().are_unchanged());
        fs::remove_file(&path).unwrap();
        assert!(!files.are_unchanged());
        assert!(LoadedFiles::of(&maps.replace("/lib", "/lib (deleted)")).is_err());
    }
}
