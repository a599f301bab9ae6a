//! Contents of an image directory: its lock, partial directories of interrupted bakes, and templates for other inputs.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::fs::{FlockOperation, flock};
use skep_api::swarm::BASE_TEMPLATE;
use skep_engine::template::{MANIFEST, Manifest, read_manifest};

use crate::{CACHE, Error, environment::ResourceNames};

/// Name prefix of directories that are not complete.
const PARTIAL: &str = ".partial-";
/// Lock file, held during a bake.
const LOCK: &str = ".lock";

/// Names of everything that a bake creates in an image directory.
pub const IMAGE_DIR_ENTRIES: [&str; 3] = [BASE_TEMPLATE, CACHE, LOCK];

/// A template that was baked for other inputs than the current ones. Another server may still use it.
#[derive(Debug)]
pub struct OtherTemplate {
    pub dir: PathBuf,
    pub disk_bytes: u64,
    /// `None` if it cannot be read.
    pub manifest: Option<Manifest>,
}

/// Removes everything that a killed bake left on this machine and in its image directory, but no templates. Blocks.
///
/// # Errors
/// [`Error::Baking`] while a bake is running there; or something could not be removed.
pub fn clean(image_dir: &Path) -> Result<(), Error> {
    let lock = image_dir.join(LOCK);
    let held = match File::open(&lock) {
        Ok(file) => Some(file),
        // Nothing was baked there, or the directory was removed while processes of a bake may still run.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io(lock.display())(error)),
    };
    if let Some(file) = &held {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::Baking(image_dir.to_owned())),
            other => other.map_err(io::Error::from).map_err(Error::io(lock.display()))?,
        }
    }
    ResourceNames::of(image_dir).clear()?;
    clear_partial(image_dir)
}

/// Locks an image directory. Calls `waits` before waiting for another process. The lock is held until the file is
/// closed.
pub(crate) fn lock(image_dir: &Path, on_wait: impl FnOnce()) -> Result<File, Error> {
    let path = image_dir.join(LOCK);
    let lock = File::create(&path).map_err(Error::io(path.display()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        on_wait();
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(io::Error::from)
            .map_err(Error::io(path.display()))?;
    }
    Ok(lock)
}

/// Creates a directory for incomplete content. Accessible by root only, because it may contain set-user-id programs.
pub(crate) fn create_partial(within: &Path) -> Result<tempfile::TempDir, Error> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().prefix(PARTIAL).permissions(permissions).tempdir_in(within);
    made.map_err(Error::io(within.display()))
}

/// Removes the partial directories of interrupted bakes. The caller holds the lock.
pub(crate) fn clear_partial(image_dir: &Path) -> Result<(), Error> {
    for folder in [image_dir.join(BASE_TEMPLATE), image_dir.join(CACHE)] {
        for path in subdirectories(&folder)?.into_iter().filter(|path| has_prefix(path, PARTIAL)) {
            fs::remove_dir_all(&path).map_err(Error::io(path.display()))?;
        }
    }
    Ok(())
}

/// Removes a template. Renames it first, so that no partly removed template can be found. The caller holds the lock.
pub(crate) fn remove(dir: &Path) -> Result<(), Error> {
    let failed = || Error::io(dir.display());
    let parent = dir.parent().unwrap_or(dir);
    let trash = create_partial(parent)?;
    fs::rename(dir, trash.path().join("removed")).map_err(failed())?;
    trash.close().map_err(failed())
}

/// Returns the templates with other keys, newest first.
pub(crate) fn other_templates(image_dir: &Path, key: &str) -> Result<Vec<OtherTemplate>, Error> {
    let mut dirs = subdirectories(&image_dir.join(BASE_TEMPLATE))?;
    dirs.retain(|dir| !has_prefix(dir, ".") && !dir.ends_with(key));
    dirs.sort_by_key(|dir| std::cmp::Reverse(baked_at(dir)));
    dirs.into_iter()
        .map(|dir| {
            let disk_bytes = disk_bytes(&dir).map_err(Error::io(dir.display()))?;
            Ok(OtherTemplate { manifest: read_manifest(&dir).ok(), disk_bytes, dir })
        })
        .collect()
}

fn baked_at(dir: &Path) -> Option<SystemTime> {
    dir.join(MANIFEST).metadata().and_then(|found| found.modified()).ok()
}

fn disk_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        // stat(2) counts blocks of 512 bytes, independent of the file system.
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

/// Returns the subdirectories of a directory; none if it does not exist.
fn subdirectories(within: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(within)?.collect::<io::Result<Vec<_>>>()?;
        Ok(entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(Error::io(within.display())),
    }
}

fn has_prefix(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_is_cleared_away_and_templates_stay() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["base/.partial-a/root", "base/0123", ".cache/.partial-b", ".cache/kernel-1"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        clean(dir.path()).unwrap();
        for (path, stays) in [
            ("base/.partial-a", false),
            ("base/0123", true),
            (".cache/.partial-b", false),
            (".cache/kernel-1", true),
        ] {
            assert_eq!(dir.path().join(path).exists(), stays, "{path}");
        }
    }

    #[test]
    fn nothing_is_cleared_away_under_a_bake() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("base/.partial-a")).unwrap();
        let turn = lock(dir.path(), || panic!("nobody else bakes")).unwrap();
        let refused = clean(dir.path()).unwrap_err();
        assert!(matches!(refused, Error::Baking(_)), "{refused}");
        assert!(dir.path().join("base/.partial-a").exists());
        drop(turn);
        clean(dir.path()).unwrap();
        assert!(!dir.path().join("base/.partial-a").exists());
    }

    #[test]
    fn a_removed_template_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let template = dir.path().join("base/0123");
        fs::create_dir_all(&template).unwrap();
        fs::write(template.join("ram"), "x").unwrap();
        remove(&template).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("base")).unwrap().count(), 0);
    }

    #[test]
    fn other_templates_are_listed_with_their_size() {
        let dir = tempfile::tempdir().unwrap();
        for key in ["wanted", "other", ".partial-x"] {
            fs::create_dir_all(dir.path().join("base").join(key)).unwrap();
            fs::write(dir.path().join("base").join(key).join("ram"), vec![1; 8192]).unwrap();
        }
        let found = other_templates(dir.path(), "wanted").unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].dir.ends_with("other") && found[0].manifest.is_none());
        assert!(found[0].disk_bytes >= 8192);
    }
}
