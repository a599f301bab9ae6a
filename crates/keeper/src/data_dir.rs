//! Paths in the data directory, and the names of its resources elsewhere on the machine.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use rustix::process::geteuid;
use sha2::{Digest, Sha256};

use crate::{Error, User, privileges::has_root};

/// Folder of sockets. They are not in the data directory because a socket's path is limited to 108 bytes.
pub(crate) const RUN_DIR: &str = "/run/skep";
/// Hex digits of the hash that identifies a data directory.
const HASH_DIGITS: usize = 12;
/// The name of the egress process's socket, beside the folders of VMs.
pub(crate) const EGRESS_SOCKET: &str = "egress.sock";

/// The folder that has all data of a server:
///
/// ```text
/// server/      the store; the server's user
/// workspaces/  the accounts' files; the server's user
/// keeper/      lock, records of VMs, disk layers; root alone
/// admin.key    the admin key; root alone
/// ```
/// Without root, all of it belongs to the keeper's user, who alone can read it.
#[derive(Debug, Clone)]
pub struct DataDir {
    path: PathBuf,
    hash: String,
}

impl DataDir {
    /// Creates the directory, if missing, and the keeper's part of it.
    ///
    /// # Errors
    /// It cannot be created, or other users may write to it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if !has_root() {
            let create = DirBuilder::new().recursive(true).mode(0o700).create(path);
            let failed = || format!("{} cannot be created; choose another --data-dir", path.display());
            create.map_err(|error| Error::io(failed())(error))?;
            let found = Self::find(path)?;
            create_dir_all(&found.keeper(), 0o700)?;
            return Ok(found);
        }
        create_dir_all(path, 0o755)?;
        let found = Self::find(path)?;
        found.allow_traversal()?;
        create_dir_all(&found.keeper(), 0o700)?;
        create_dir_all(&found.disk_layers(), 0o700)?;
        create_dir_all(&found.records(), 0o700)?;
        Ok(found)
    }

    /// Lets the server's user traverse the directory, to reach its part, but not list it.
    fn allow_traversal(&self) -> Result<(), Error> {
        let failed = || Error::io(self.path.display().to_string());
        let mode = fs::metadata(&self.path).map_err(failed())?.permissions().mode();
        fs::set_permissions(&self.path, Permissions::from_mode(mode | 0o011)).map_err(failed())
    }

    /// An existing data directory.
    ///
    /// # Errors
    /// It does not exist, or other users may write to it.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let path = path.canonicalize().map_err(Error::io(path.display().to_string()))?;
        let found = fs::metadata(&path).map_err(Error::io(path.display().to_string()))?;
        // Another user with write access could place symlinks where the keeper creates, writes and chowns files as
        // root. Without root the owner decides who may write: the umask of many users lets their group do it.
        let uid = geteuid().as_raw();
        if has_root() && (found.uid() != uid || found.mode() & 0o022 != 0) {
            return Err(Error::UnsafePermissions { dir: path, uid });
        }
        let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let mut hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        hash.truncate(HASH_DIGITS);
        Ok(Self { path, hash })
    }

    /// Creates the server's part, owned by its user.
    ///
    /// # Errors
    /// It cannot be created, or its owner cannot be changed.
    pub(crate) fn give_to(&self, user: &User) -> Result<(), Error> {
        for folder in [self.server(), self.workspaces()] {
            create_dir_all(&folder, 0o700)?;
            if has_root() {
                chown(&folder, Some(user.uid), Some(user.gid))
                    .map_err(Error::io(folder.display().to_string()))?;
            }
        }
        Ok(())
    }

    /// The canonical path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn server(&self) -> PathBuf {
        self.path.join("server")
    }

    pub fn workspaces(&self) -> PathBuf {
        self.path.join("workspaces")
    }

    pub fn admin_key(&self) -> PathBuf {
        self.path.join("admin.key")
    }

    pub(crate) fn keeper(&self) -> PathBuf {
        self.path.join("keeper")
    }

    pub(crate) fn disk_layers(&self) -> PathBuf {
        self.keeper().join("layers")
    }

    /// The names that VMs use, which the egress process writes.
    pub fn egress_names(&self) -> PathBuf {
        self.keeper().join("egress-names.jsonl")
    }

    /// The names that VMs used with earlier releases.
    pub(crate) fn earlier_egress_names(&self) -> PathBuf {
        self.keeper().join("egress-names")
    }

    /// The record of the egress process.
    pub(crate) fn egress_record(&self) -> PathBuf {
        self.keeper().join("egress.json")
    }

    /// The socket at which the egress process awaits its keeper.
    pub(crate) fn egress_socket(&self) -> PathBuf {
        self.sockets().join(EGRESS_SOCKET)
    }

    pub(crate) fn records(&self) -> PathBuf {
        self.keeper().join("vms")
    }

    /// File with the paths of the cgroups of VMs, for the cleanup after a crash.
    pub(crate) fn cgroup_record(&self) -> PathBuf {
        self.keeper().join("cgroups")
    }

    /// Identifies the data directory: 12 hex digits of the hash of its path.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// File with the paths of the cgroups of helpers, for the cleanup after a crash.
    pub(crate) fn helper_cgroup_record(&self) -> PathBuf {
        self.keeper().join("helper-cgroups")
    }

    /// The name of the cgroups of helpers.
    pub(crate) fn helpers_name(&self) -> String {
        format!("{}-helpers", self.name())
    }

    /// The name of its network namespace and of the cgroups of VMs.
    pub fn name(&self) -> String {
        format!("skep-{}", self.hash)
    }

    pub fn sockets(&self) -> PathBuf {
        Path::new(RUN_DIR).join(&self.hash)
    }
}

/// Creates a folder and its parents, if missing.
pub(crate) fn create_dir_all(path: &Path, mode: u32) -> Result<(), Error> {
    let missing: Vec<&Path> = path.ancestors().skip(1).take_while(|above| !above.exists()).collect();
    for above in missing.into_iter().rev().filter(|above| !above.as_os_str().is_empty()) {
        create_dir(above, 0o755)?;
    }
    create_dir(path, mode)
}

fn create_dir(path: &Path, mode: u32) -> Result<(), Error> {
    let failed = || Error::io(path.display().to_string());
    match DirBuilder::new().mode(mode).create(path) {
        // The umask applies to the mode of `create`.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        // The parent exists, but its file system does not support folders, as /proc.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let why = "no folder can be made there; name another place";
            Err(failed()(io::Error::new(error.kind(), why)))
        }
        Err(error) => Err(failed()(error)),
    }
}

/// Removes a folder with its content, if it exists.
pub(crate) fn remove_dir_all(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path.display().to_string())(error))
        }
        _ => Ok(()),
    }
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path.display().to_string())(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_directory_has_one_name_however_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::find(dir.path()).unwrap();
        let second = DataDir::find(&dir.path().join("../").join(dir.path().file_name().unwrap())).unwrap();
        assert_eq!(first.name(), second.name());
        assert_eq!(first.hash().len(), HASH_DIGITS);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(DataDir::find(other.path()).unwrap().name(), first.name());
    }

    #[test]
    fn only_the_owner_can_read_the_keepers_part() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(&dir.path().join("deep/data")).unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let whole = if has_root() { 0o755 } else { 0o700 };
        assert_eq!((mode(data.keeper()), mode(data.path().to_owned())), (0o700, whole));
        // Opening it a second time changes nothing.
        DataDir::open(data.path()).unwrap();
    }

    #[test]
    fn a_directory_is_made_with_those_above_it_and_not_where_none_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        create_dir_all(&path, 0o700).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&dir.path().join("a/b"))), (0o700, 0o755));
        for nowhere in ["/proc/skep-test", "/proc/skep-test/below"] {
            let refused = create_dir_all(Path::new(nowhere), 0o700).unwrap_err();
            let source = std::error::Error::source(&refused).unwrap().to_string();
            assert!(source.contains("no folder can be made"), "{refused}: {source}");
        }
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_by_root_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("keeper")).unwrap();
        for mode in [0o777, 0o1777, 0o770, 0o702] {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let opened = DataDir::open(dir.path());
            let refused = matches!(opened, Err(Error::UnsafePermissions { .. }));
            assert_eq!(refused, has_root(), "{mode:o}: {opened:?}");
            assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777, mode);
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_socket_path_fits_into_an_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = DataDir::find(dir.path()).unwrap().sockets().join("vm_01234567890123456789012345/monitor");
        assert!(path.as_os_str().len() < 108);
    }
}
