//! The identity of a folder, independent of the path that names it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use super::{open::is_on_kernel_filesystem, open_root};

/// The path of a folder without symbolic links, and the identities of the folder and its ancestors.
///
/// All paths to a folder give the same identities: through links, `/proc/self/root`, a bind mount of the folder
/// itself, or a different case on a case-insensitive file system. A bind mount of a *subfolder* is not recognised as
/// lying inside the folder, since its ancestors are those of the mount point; callers that must detect this compare
/// with each subfolder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    path: PathBuf,
    /// Device and inode of `/` and of each existing folder on the path.
    identities: Vec<(u64, u64)>,
    /// The components after the last existing folder.
    missing: PathBuf,
}

impl Location {
    /// Resolves a path. The folder need not exist; its missing components must then be plain names.
    ///
    /// # Errors
    /// The path is relative, contains a dangling link, names something other than a folder, or cannot be read.
    pub fn of(path: &Path) -> io::Result<Self> {
        if !path.is_absolute() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not absolute"));
        }
        let (real, missing) = resolve(path)?;
        if !fs::metadata(&real)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let identity = |folder: &Path| fs::metadata(folder).map(|found| (found.dev(), found.ino()));
        let mut identities = real.ancestors().map(identity).collect::<io::Result<Vec<_>>>()?;
        identities.reverse();
        let path = if missing.as_os_str().is_empty() { real } else { real.join(&missing) };
        Ok(Self { path, identities, missing })
    }

    /// The path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `other` is this folder or lies below it.
    pub fn contains(&self, other: &Self) -> bool {
        let Some(own) = self.identities.last() else { return false };
        if self.missing.as_os_str().is_empty() {
            return other.identities.contains(own);
        }
        other.identities.last() == Some(own) && other.missing.starts_with(&self.missing)
    }

    /// Whether one folder contains the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Whether it is on a kernel file system, such as proc.
    ///
    /// # Errors
    /// The folder cannot be examined.
    pub fn is_on_kernel_filesystem(&self) -> io::Result<bool> {
        let existing = self.path.ancestors().nth(self.missing.components().count());
        is_on_kernel_filesystem(open_root(existing.unwrap_or(Path::new("/")))?)
    }
}

/// The existing part of a path, without links, and the components after it.
fn resolve(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    for existing in path.ancestors() {
        match existing.canonicalize() {
            Ok(real) => {
                let missing = path.strip_prefix(existing).map_err(io::Error::other)?;
                if missing.components().any(|name| !matches!(name, Component::Normal(_))) {
                    let why = "it has `..` behind a name that does not exist";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                return Ok((real, missing.to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(existing).is_ok() {
                    let why = format!("{} is a link that leads to nothing", existing.display());
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_is_recognised_by_every_spelling() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("one/sub/deep")).unwrap();
        fs::create_dir_all(at("one-more")).unwrap();
        symlink(at("one"), at("link")).unwrap();
        symlink(at("one/sub"), at("into")).unwrap();
        let of = |path: PathBuf| Location::of(&path).unwrap();
        let one = of(at("one"));
        let below_proc = |name: &str| PathBuf::from(format!("/proc/self/root{}", at(name).display()));
        for same in [at("link"), at("one/../one"), at("one/sub/.."), below_proc("one"), below_proc("link")] {
            assert_eq!(of(same.clone()), one, "{same:?}");
        }
        for inside in [at("into"), at("link/sub/deep"), below_proc("into/deep"), at("link/new/er")] {
            let inside = of(inside);
            assert!(one.contains(&inside) && !inside.contains(&one) && one.overlaps(&inside), "{inside:?}");
        }
        for around in [folder.path().to_owned(), PathBuf::from("/")] {
            assert!(of(around).contains(&one));
        }
        for beside in [at("one-more"), at("one-new"), PathBuf::from("/etc")] {
            assert!(!one.overlaps(&of(beside)));
        }
    }

    #[test]
    fn folders_that_are_not_there_yet_are_compared_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| Location::of(&folder.path().join(name)).unwrap();
        assert!(of("new").contains(&of("new/sub")) && !of("new/sub").contains(&of("new")));
        assert!(!of("new").overlaps(&of("newer")));
        assert_eq!(of("new/sub").path(), folder.path().canonicalize().unwrap().join("new/sub"));
        symlink("nothing", folder.path().join("dangling")).unwrap();
        for wrong in ["dangling", "dangling/sub", "new/../x"] {
            assert!(Location::of(&folder.path().join(wrong)).is_err(), "{wrong}");
        }
        fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(
            Location::of(&folder.path().join("file")).unwrap_err().kind(),
            io::ErrorKind::NotADirectory
        );
        assert!(Location::of(Path::new("relative")).is_err());
        assert!(Location::of(Path::new("/proc/self")).unwrap().is_on_kernel_filesystem().unwrap());
        assert!(!of("new/sub").is_on_kernel_filesystem().unwrap());
    }
}
