//! What lies in an image directory beside the template that is wanted: other templates, and what killed bakes left.

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

use crate::{CACHE, Error, place::Site};

/// How folders begin that are no template and no part of the cache yet.
const PARTIAL: &str = ".partial-";
/// The file by which bakes take turns.
const LOCK: &str = ".lock";

/// The names of all that a bake makes in an image directory.
pub const CONTENTS: [&str; 3] = [BASE_TEMPLATE, CACHE, LOCK];

/// A template that was baked for other inputs than those of now. Another server may still need it.
#[derive(Debug)]
pub struct OtherTemplate {
    /// Its folder.
    pub dir: PathBuf,
    /// What it takes on disk.
    pub disk_bytes: u64,
    /// What it is; nothing where that cannot be read.
    pub manifest: Option<Manifest>,
}

/// Removes all that a killed bake left, on this machine and in its image directory. Templates stay. Blocks.
///
/// # Errors
/// [`Error::Baking`] while a bake is under way there; or something could not be removed.
pub fn clean(image_dir: &Path) -> Result<(), Error> {
    let lock = image_dir.join(LOCK);
    let held = match File::open(&lock) {
        Ok(file) => Some(file),
        // Nothing was ever baked there; or somebody removed the folder, but not what runs.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io(lock.display())(error)),
    };
    if let Some(file) = &held {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::Baking(image_dir.to_owned())),
            other => other.map_err(io::Error::from).map_err(Error::io(lock.display()))?,
        }
    }
    Site::of(image_dir).clear()?;
    clear_partial(image_dir)
}

/// Waits until no other process bakes in an image directory; `waits` is told where one does. The turn lasts until the
/// file closes.
pub(crate) fn take_turn(image_dir: &Path, waits: impl FnOnce()) -> Result<File, Error> {
    let path = image_dir.join(LOCK);
    let lock = File::create(&path).map_err(Error::io(path.display()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        waits();
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(io::Error::from)
            .map_err(Error::io(path.display()))?;
    }
    Ok(lock)
}

/// A folder for something that is not whole yet. Root's alone: it may hold programs with set-user-id bits.
pub(crate) fn partial(within: &Path) -> Result<tempfile::TempDir, Error> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().prefix(PARTIAL).permissions(permissions).tempdir_in(within);
    made.map_err(Error::io(within.display()))
}

/// Removes what bakes did not finish. The caller has its turn.
pub(crate) fn clear_partial(image_dir: &Path) -> Result<(), Error> {
    for folder in [image_dir.join(BASE_TEMPLATE), image_dir.join(CACHE)] {
        for path in folders(&folder)?.into_iter().filter(|path| begins(path, PARTIAL)) {
            fs::remove_dir_all(&path).map_err(Error::io(path.display()))?;
        }
    }
    Ok(())
}

/// Takes a template away: its name first, so that nobody finds half of it. The caller has its turn.
pub(crate) fn remove(dir: &Path) -> Result<(), Error> {
    let failed = || Error::io(dir.display());
    let shelf = dir.parent().unwrap_or(dir);
    let grave = partial(shelf)?;
    fs::rename(dir, grave.path().join("removed")).map_err(failed())?;
    grave.close().map_err(failed())
}

/// The templates of other keys, the newest first.
pub(crate) fn others(image_dir: &Path, key: &str) -> Result<Vec<OtherTemplate>, Error> {
    let mut dirs = folders(&image_dir.join(BASE_TEMPLATE))?;
    dirs.retain(|dir| !begins(dir, ".") && !dir.ends_with(key));
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
        // The unit of stat(2), whatever the file system's is.
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

/// The folders in a folder; none where it does not exist.
fn folders(within: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(within)?.collect::<io::Result<Vec<_>>>()?;
        Ok(entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(Error::io(within.display())),
    }
}

fn begins(path: &Path, with: &str) -> bool {
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
        let turn = take_turn(dir.path(), || panic!("nobody else bakes")).unwrap();
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
    fn other_templates_are_told_with_their_size() {
        let dir = tempfile::tempdir().unwrap();
        for key in ["wanted", "other", ".partial-x"] {
            fs::create_dir_all(dir.path().join("base").join(key)).unwrap();
            fs::write(dir.path().join("base").join(key).join("ram"), vec![1; 8192]).unwrap();
        }
        let found = others(dir.path(), "wanted").unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].dir.ends_with("other") && found[0].manifest.is_none());
        assert!(found[0].disk_bytes >= 8192);
    }
}
