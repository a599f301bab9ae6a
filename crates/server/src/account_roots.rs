//! Decides which folders may be roots of an account.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use skep_api::{ErrorCode, Failure};
use skep_store::AccountRoot;
use skep_workspace::Location;

/// Kernel file systems: their files control the kernel or belong to processes.
const KERNEL_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// The rules for account roots. They do not change while a server runs.
#[derive(Debug, Clone)]
pub struct RootRules {
    data_dir: PathBuf,
    workspaces: PathBuf,
}

/// Why a folder cannot be a root.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// Its path cannot be resolved.
    #[error("the root {} cannot be resolved: {source}; name another folder", path.display())]
    Unresolvable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// File operations below it would reach the store and its keys.
    #[error(
        "the root {} reaches the server's own data in {}; name a folder outside of it, or one in its `workspaces/`",
        path.display(), data_dir.display()
    )]
    ServerData { path: PathBuf, data_dir: PathBuf },
    /// It overlaps a kernel file system.
    #[error("the root {} lies in /proc, /sys or /dev, or on such a file system; name another folder", path.display())]
    System { path: PathBuf },
    /// It overlaps a root of another account.
    #[error(
        "the root {} is {}, lies in it, or holds it, which is a root of the account `{}`; name another folder",
        path.display(), other.path.display(), other.account
    )]
    OverlapsOtherAccount { path: PathBuf, other: AccountRoot },
    /// A stored root was replaced by a symbolic link, or stored by a version of skep that did not resolve links.
    #[error("the root {} leads through a link to {}; name that folder itself", path.display(), real.display())]
    Linked {
        /// The path in the store.
        path: PathBuf,
        /// The path that the link resolves to.
        real: PathBuf,
    },
}

impl RootRules {
    /// The rules of the server with this data directory.
    ///
    /// # Errors
    /// The data directory cannot be read.
    pub fn new(data_dir: &Path) -> io::Result<Self> {
        let data_dir = Location::of(data_dir)?.path().to_owned();
        let workspaces = Location::of(&data_dir.join("workspaces"))?.path().to_owned();
        Ok(Self { data_dir, workspaces })
    }

    /// The folder in which default account roots are created, with links resolved.
    pub fn workspaces(&self) -> &Path {
        &self.workspaces
    }

    /// Resolves a folder and checks that it may be a root beside the roots of other accounts. Blocks.
    ///
    /// # Errors
    /// [`RootError`].
    pub fn check(&self, path: &Path, others: &[AccountRoot]) -> Result<PathBuf, RootError> {
        let unknown = |source| RootError::Unresolvable { path: path.to_owned(), source };
        let root = Location::of(path).map_err(unknown)?;
        if !self.is_in_workspaces(&root).map_err(unknown)? {
            if self.reaches_server_data(&root).map_err(unknown)? {
                let data_dir = self.data_dir.clone();
                return Err(RootError::ServerData { path: path.to_owned(), data_dir });
            }
            if is_in_kernel_folder(&root).map_err(unknown)? {
                return Err(RootError::System { path: path.to_owned() });
            }
        }
        match others.iter().find(|other| overlaps(&root, &other.path)) {
            Some(other) => {
                Err(RootError::OverlapsOtherAccount { path: path.to_owned(), other: other.clone() })
            }
            None => Ok(root.path().to_owned()),
        }
    }

    /// Checks a root from the store, where paths are stored resolved: a folder on the path may since have become a
    /// symbolic link. Blocks.
    ///
    /// # Errors
    /// [`RootError`].
    pub fn check_stored(&self, path: &Path, others: &[AccountRoot]) -> Result<(), RootError> {
        let real = self.check(path, others)?;
        if real == path { Ok(()) } else { Err(RootError::Linked { path: path.to_owned(), real }) }
    }

    /// Whether it is a folder in `workspaces/`, the only part of the data directory that accounts may use.
    fn is_in_workspaces(&self, root: &Location) -> io::Result<bool> {
        let workspaces = Location::of(&self.workspaces)?;
        Ok(workspaces.contains(root) && !root.contains(&workspaces))
    }

    fn reaches_server_data(&self, root: &Location) -> io::Result<bool> {
        if root.overlaps(&Location::of(&self.data_dir)?) {
            return Ok(true);
        }
        // The parents of a bind mount differ from those of the mounted folder, so each folder is compared.
        for folder in self.folders_of_server_data()? {
            match Location::of(&folder) {
                Ok(folder) if root.overlaps(&folder) => return Ok(true),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(false)
    }

    /// `workspaces/`, and all folders of the data directory outside of it that this process may list.
    fn folders_of_server_data(&self) -> io::Result<Vec<PathBuf>> {
        let mut folders = vec![self.workspaces.clone()];
        let mut unread = vec![self.data_dir.clone()];
        while let Some(folder) = unread.pop() {
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() && entry.path() != self.workspaces {
                    folders.push(entry.path());
                    unread.push(entry.path());
                }
            }
        }
        Ok(folders)
    }

    /// Whether a stored path overlaps the server's data by its text alone. For roots that earlier versions stored.
    pub(crate) fn overlaps_data_by_path(&self, path: &Path) -> bool {
        let own_folder = path.starts_with(&self.workspaces) && path != self.workspaces;
        !own_folder && (path.starts_with(&self.data_dir) || self.data_dir.starts_with(path))
    }
}

fn is_in_kernel_folder(root: &Location) -> io::Result<bool> {
    let system = KERNEL_FOLDERS.iter().filter_map(|folder| Location::of(Path::new(folder)).ok());
    Ok(system.into_iter().any(|system| root.overlaps(&system)) || root.is_on_kernel_filesystem()?)
}

/// A root whose folder cannot be read any more is compared by its path only.
fn overlaps(root: &Location, other: &Path) -> bool {
    let by_name = root.path().starts_with(other) || other.starts_with(root.path());
    by_name || Location::of(other).is_ok_and(|other| root.overlaps(&other))
}

impl From<RootError> for Failure {
    fn from(refused: RootError) -> Self {
        Self::new(ErrorCode::InvalidValue, format!("`roots`: {refused}"))
    }
}
