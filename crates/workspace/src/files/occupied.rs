//! How much disk space the files of a workspace occupy.

use std::{
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Statx, StatxFlags, statx},
    io::Errno,
    process::geteuid,
};

use super::remove::{MAX_DEPTH, open_folder};
use crate::{disk_space::ENTRY_BYTES, open_root};

/// The mode bits with which an owner may list a folder and open what is in it.
const OWNER_READS: u16 = 0o500;
/// So many components of a path are shown that is too deep.
const SHOWN_COMPONENTS: usize = 8;

/// The disk space that everything below these folders occupies, in bytes. Blocks its thread.
///
/// Each entry counts at least [`ENTRY_BYTES`]. Each name of a file with several names counts for its part, so that the file
/// counts once if all of them lie below the folders. Mount points are not entered. What does not exist, or belongs to
/// another user and may not be read, does not count.
///
/// # Errors
/// An error with an inner error if folders are nested more than 64 deep, or if this user owns a folder whose mode forbids it to
/// read that folder; otherwise the error of the kernel.
pub fn occupied_bytes(folders: &[PathBuf]) -> io::Result<u64> {
    let mut sum = 0;
    for path in folders {
        let root = match open_root(path) {
            // A link stands where the root was, and operations below it are refused as well.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
            opened => if_readable(opened)?,
        };
        let Some(root) = root else { continue };
        if let Some(folder) = if_readable(open_folder(root, ".".as_ref()))? {
            sum += bytes_below(folder, &mut path.clone(), 0)?;
        }
    }
    Ok(sum)
}

/// `path` is that of the folder, for messages.
fn bytes_below(folder: OwnedFd, path: &mut PathBuf, depth: usize) -> io::Result<u64> {
    if depth > MAX_DEPTH {
        let top: PathBuf = path.iter().take(SHOWN_COMPONENTS).collect();
        let message = format!("folders below {} are nested more than {MAX_DEPTH} deep", top.display());
        return Err(io::Error::other(message));
    }
    let (mut folder, mut sum) = (Dir::new(folder)?, 0);
    while let Some(entry) = folder.read() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let stat = statx(folder.fd()?, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
        let Some(stat) = if_readable(stat.map_err(io::Error::from))? else { continue };
        let is_folder = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        sum += bytes_of(&stat, is_folder);
        if is_folder {
            path.push(name);
            check_mode(&stat, path)?;
            if let Some(inner) = if_readable(open_folder(folder.fd()?, name))? {
                sum += bytes_below(inner, path, depth + 1)?;
            }
            path.pop();
        }
    }
    Ok(sum)
}

/// Fails for a folder whose content this user can change, and not read: an account can make such a folder, and move files into it.
fn check_mode(folder: &Statx, path: &Path) -> io::Result<()> {
    let user = geteuid();
    if user.is_root() || folder.stx_uid != user.as_raw() || folder.stx_mode & OWNER_READS == OWNER_READS {
        return Ok(());
    }
    Err(io::Error::other(format!("the mode of the folder {} forbids to read it", path.display())))
}

/// What an entry occupies, without what is below it.
fn bytes_of(stat: &Statx, is_folder: bool) -> u64 {
    // The unit does not depend on the file system (statx(2)).
    let whole = stat.stx_blocks.saturating_mul(512);
    // The links of a folder are its subfolders.
    let names = if is_folder { 1 } else { u64::from(stat.stx_nlink).max(1) };
    (whole / names).max(ENTRY_BYTES)
}

/// `None` for what was removed or replaced meanwhile, is a mount point, or may not be read.
fn if_readable<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS | Errno::PERM) => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    const MEBIBYTE: usize = 1 << 20;

    #[test]
    fn files_count_by_the_space_that_they_occupy() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folders = [first.path().to_owned(), second.path().to_owned()];
        assert_eq!(occupied_bytes(&folders).unwrap(), 0);
        fs::create_dir_all(first.path().join("a/.hidden")).unwrap();
        fs::write(first.path().join("a/.hidden/data"), vec![1; MEBIBYTE]).unwrap();
        fs::write(second.path().join("empty"), "").unwrap();
        File::create(first.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let entries = 5;
        let counted = occupied_bytes(&folders).unwrap();
        let expected = MEBIBYTE as u64..=MEBIBYTE as u64 + entries * ENTRY_BYTES;
        assert!(expected.contains(&counted), "{counted}");
        // Links to it do not make it larger, and neither does what lies elsewhere.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("data"), vec![1; MEBIBYTE]).unwrap();
        symlink(elsewhere.path(), first.path().join("link")).unwrap();
        for name in ["second", "third"] {
            fs::hard_link(first.path().join("a/.hidden/data"), first.path().join(name)).unwrap();
        }
        let linked = occupied_bytes(&folders).unwrap();
        assert!((counted..=counted + 3 * ENTRY_BYTES).contains(&linked), "{linked}");
        let missing = [first.path().join("no-such-folder"), folders[0].clone()];
        assert_eq!(occupied_bytes(&missing).unwrap(), linked - ENTRY_BYTES);
    }

    #[test]
    fn many_entries_count_although_they_are_empty() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..500 {
            fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(occupied_bytes(&[folder.path().to_owned()]).unwrap(), 500 * ENTRY_BYTES);
    }

    #[test]
    fn a_folder_of_this_user_that_may_not_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let hidden = folder.path().join("hidden");
        fs::create_dir(&hidden).unwrap();
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o300)).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let folders = [folder.path().to_owned()];
        let counted = if geteuid().is_root() {
            // Root reads it all the same; a thread of another user does not.
            const NOBODY: u32 = 65_534;
            std::os::unix::fs::chown(&hidden, Some(NOBODY), Some(NOBODY)).unwrap();
            assert_eq!(occupied_bytes(&folders).unwrap(), ENTRY_BYTES);
            let counting = std::thread::spawn(move || {
                rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(NOBODY)).unwrap();
                occupied_bytes(&folders)
            });
            counting.join().unwrap()
        } else {
            occupied_bytes(&folders)
        };
        let error = counted.unwrap_err();
        assert!(error.to_string().contains("/hidden forbids to read it"), "{error}");
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn folders_that_are_nested_too_deep_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let deepest: PathBuf = std::iter::repeat_n("d", MAX_DEPTH).collect();
        fs::create_dir_all(folder.path().join(&deepest)).unwrap();
        let folders = [folder.path().to_owned()];
        assert_eq!(occupied_bytes(&folders).unwrap(), MAX_DEPTH as u64 * ENTRY_BYTES);
        fs::create_dir(folder.path().join(deepest).join("d")).unwrap();
        let error = occupied_bytes(&folders).unwrap_err();
        assert!(error.to_string().contains("more than 64 deep"), "{error}");
    }
}
