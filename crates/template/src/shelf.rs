//! The shelf of templates, an image directory: its lock, templates by name and key, and incomplete directories of
//! interrupted bakes.
//!
//! The folder of a template is `<image-dir>/<name>/<key>/`; the name is `base`, or the id of a template that was built from
//! another one. The key is a hash of all inputs, so that servers of different
//! builds can share an image directory, and a template for other inputs is not found.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::fs::{FlockOperation, flock};
use skep_api::swarm::BASE_TEMPLATE;

use crate::{Error, MANIFEST, Manifest, TemplateFile, read_manifest, verified_file::while_links_change};

/// Name prefix of directories that are not complete.
const PARTIAL: &str = ".partial-";
/// Name prefix of the directory of a snapshot that is being written. It differs from [`PARTIAL`] because a bake removes all partial
/// directories, and the keeper writes snapshots without the lock: with the lock, a paused VM would wait for the end of a bake.
const PARTIAL_SNAPSHOT: &str = ".snapshot-";
/// Subdirectory for packages and kernels. Names of templates never begin with a dot.
pub const CACHE: &str = ".cache";
/// Lock file, held during a bake.
pub const LOCK: &str = ".lock";

/// Names of everything that a bake creates in an image directory.
pub const ENTRIES: [&str; 3] = [BASE_TEMPLATE, CACHE, LOCK];

/// A template that was baked for other inputs than the current ones. Another server may still use it.
#[derive(Debug)]
pub struct OtherTemplate {
    pub dir: PathBuf,
    pub disk_bytes: u64,
    /// `None` if it cannot be read.
    pub manifest: Option<Manifest>,
}

/// The folder of a template in an image directory.
pub fn template_dir(image_dir: &Path, name: &str, key: &str) -> PathBuf {
    image_dir.join(name).join(key)
}

/// Returns the folder of a template if it exists and is complete. Does not verify its content.
pub fn find(image_dir: &Path, name: &str, key: &str) -> Option<PathBuf> {
    let dir = template_dir(image_dir, name, key);
    dir.join(MANIFEST).is_file().then_some(dir)
}

/// Makes a complete template visible under its key. The caller holds the lock.
///
/// # Errors
/// It cannot be renamed or synced.
pub fn publish(work: tempfile::TempDir, dir: &Path) -> Result<(), Error> {
    let publish = || {
        // A directory without a manifest is a template of which a part was removed.
        if dir.is_dir() {
            fs::remove_dir_all(dir)?;
        }
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755))?;
        fs::rename(work.path(), dir)?;
        // Prevents the removal on drop: the directory has been renamed.
        let _ = work.keep();
        if let Some(shelf) = dir.parent() {
            // Sync the directory as well, otherwise ext4 may lose the new name in a power failure.
            File::open(shelf)?.sync_all()?;
        }
        Ok(())
    };
    publish().map_err(Error::io(dir.display()))
}

/// Locks an image directory. Calls `on_wait` before waiting for another process. The lock is held until the file is
/// closed.
///
/// # Errors
/// The lock file cannot be created.
pub fn lock(image_dir: &Path, on_wait: impl FnOnce()) -> Result<File, Error> {
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
///
/// # Errors
/// The directory cannot be written.
pub fn create_partial(within: &Path) -> Result<tempfile::TempDir, Error> {
    create_directory(within, PARTIAL)
}

/// Like [`create_partial`], for a snapshot. The caller does not hold the lock. What a kill leaves of it is removed with the folder
/// of the snapshot, which has no other files.
///
/// # Errors
/// The directory cannot be written.
pub fn create_partial_snapshot(within: &Path) -> Result<tempfile::TempDir, Error> {
    create_directory(within, PARTIAL_SNAPSHOT)
}

fn create_directory(within: &Path, prefix: &str) -> Result<tempfile::TempDir, Error> {
    let permissions = fs::Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().prefix(prefix).permissions(permissions).tempdir_in(within);
    made.map_err(Error::io(within.display()))
}

/// Removes the partial directories of interrupted bakes. The caller holds the lock.
///
/// # Errors
/// The directory cannot be written.
pub fn clear_partial(image_dir: &Path) -> Result<(), Error> {
    let folders = subdirectories(image_dir)?;
    for folder in folders.into_iter().filter(|folder| !has_prefix(folder, PARTIAL)) {
        for path in subdirectories(&folder)?.into_iter().filter(|path| has_prefix(path, PARTIAL)) {
            fs::remove_dir_all(&path).map_err(Error::io(path.display()))?;
        }
    }
    Ok(())
}

/// Removes a template. Renames it first, so that no partly removed template can be found. The caller holds the lock.
///
/// # Errors
/// The directory cannot be written.
pub fn remove(dir: &Path) -> Result<(), Error> {
    let failed = || Error::io(dir.display());
    let parent = dir.parent().unwrap_or(dir);
    let trash = create_partial(parent)?;
    fs::rename(dir, trash.path().join("removed")).map_err(failed())?;
    trash.close().map_err(failed())
}

/// Removes the folder of a name: the folders in it first, so that what a kill leaves of them still has its recipe, by which the
/// next start knows it. Files that other templates have links to remain verified.
///
/// # Errors
/// The folder is missing, or cannot be written.
pub fn remove_name(folder: &Path) -> io::Result<()> {
    for dir in subdirectories(folder).map_err(io::Error::other)? {
        let root = dir.join(TemplateFile::Root.file_name());
        match while_links_change(&root, || fs::remove_file(&root)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::remove_dir_all(&dir)?,
        }
    }
    fs::remove_dir_all(folder)
}

/// Returns the templates of this name with other keys, newest first.
///
/// # Errors
/// The directory cannot be read.
pub fn other_templates(image_dir: &Path, name: &str, key: &str) -> Result<Vec<OtherTemplate>, Error> {
    let mut dirs = subdirectories(&image_dir.join(name))?;
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

/// The space that the files of a template occupy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// All its files, in bytes.
    pub all: u64,
    /// Without the files that it has in common with the template that it was made from, in bytes.
    pub own: u64,
}

impl Footprint {
    /// `shared`: the files that the template has in common with the one that it was made from. The number of links of a file
    /// does not show that: it changes whenever another template is made or removed.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn of(dir: &Path, shared: &[TemplateFile]) -> Result<Self, Error> {
        let read = || {
            let mut sum = Self { all: 0, own: 0 };
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                // stat(2) counts blocks of 512 bytes, independent of the file system.
                let bytes = entry.metadata()?.blocks() * 512;
                let name = entry.file_name();
                sum.all += bytes;
                sum.own += if shared.iter().any(|part| name == part.file_name()) { 0 } else { bytes };
            }
            Ok(sum)
        };
        read().map_err(Error::io(dir.display()))
    }
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
    use std::mem::MaybeUninit;

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

    use super::*;

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
    fn a_bake_does_not_remove_a_snapshot_that_is_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("name");
        fs::create_dir(&folder).unwrap();
        let (snapshot, bake) = (create_partial_snapshot(&folder).unwrap(), create_partial(&folder).unwrap());
        clear_partial(dir.path()).unwrap();
        assert_eq!((snapshot.path().exists(), bake.path().exists()), (true, false));
    }

    #[test]
    fn the_files_beside_the_folders_of_a_name_are_removed_last() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("name");
        // Several, because a file system lists names in an order of its own.
        for number in 0..10 {
            fs::create_dir_all(folder.join(format!("key-{number}"))).unwrap();
            fs::write(folder.join(format!("key-{number}/ram")), "x").unwrap();
            fs::write(folder.join(format!("file-{number}")), "x").unwrap();
        }
        let inotify = inotify::init(CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&inotify, &folder, WatchFlags::DELETE).unwrap();
        remove_name(&folder).unwrap();
        let mut buffer = [MaybeUninit::uninit(); 4 << 10];
        let mut removals = inotify::Reader::new(inotify, &mut buffer);
        let folders_first = [true; 10].into_iter().chain([false; 10]);
        for is_folder in folders_first {
            let removal = removals.next().unwrap();
            assert_eq!(removal.events().contains(ReadFlags::ISDIR), is_folder, "{:?}", removal.file_name());
        }
        assert!(!folder.exists());
    }

    #[test]
    fn what_a_template_has_of_its_own_does_not_depend_on_links_to_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let (template, other) = (dir.path().join("template"), dir.path().join("other"));
        for folder in [&template, &other] {
            fs::create_dir(folder).unwrap();
        }
        for part in TemplateFile::ALL {
            fs::write(template.join(part.file_name()), vec![1; 8192]).unwrap();
        }
        let before = Footprint::of(&template, &TemplateFile::OF_PARENT).unwrap();
        assert_eq!(before.own * 2, before.all);
        assert_eq!(Footprint::of(&template, &[]).unwrap().own, before.all);
        for part in TemplateFile::OF_ORIGIN {
            fs::hard_link(template.join(part.file_name()), other.join(part.file_name())).unwrap();
        }
        assert_eq!(Footprint::of(&template, &TemplateFile::OF_PARENT).unwrap(), before);
        assert_eq!(Footprint::of(&other, &TemplateFile::OF_ORIGIN).unwrap().own, 0);
        fs::remove_dir_all(&template).unwrap();
        assert_eq!(Footprint::of(&other, &TemplateFile::OF_ORIGIN).unwrap().own, 0);
    }

    #[test]
    fn other_templates_are_listed_with_their_size() {
        let dir = tempfile::tempdir().unwrap();
        for key in ["wanted", "other", ".partial-x"] {
            fs::create_dir_all(dir.path().join("base").join(key)).unwrap();
            fs::write(dir.path().join("base").join(key).join("ram"), vec![1; 8192]).unwrap();
        }
        let found = other_templates(dir.path(), "base", "wanted").unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].dir.ends_with("other") && found[0].manifest.is_none());
        assert!(found[0].disk_bytes >= 8192);
    }
}
