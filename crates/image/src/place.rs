//! Where the processes of a bake live on this machine, and how what a killed bake left is cleared away.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use skep_engine::template::hex;
use skep_jail::{Cgroup, CgroupLimits, Tree};
use skep_network::Network;

use crate::{Error, command::Pen};

/// Where sockets lie: a socket's path has 108 bytes at the most, and an image directory may lie deep.
const RUN_DIR: &str = "/run/skep";
/// Digits of the hash that tells image directories apart.
const HASH_DIGITS: usize = 12;
/// The file that tells where the control groups lie: a unit's own part is not found from outside of it.
const CGROUP_RECORD: &str = "cgroups";
/// More than any of the programs has ever needed.
const PROGRAMS_PIDS: u64 = 4096;

/// The names of what a bake makes outside of its image directory. They follow from that directory, so that the next bake
/// finds what a killed one left.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    name: String,
    folder: PathBuf,
}

impl Site {
    /// The site of an image directory, however it is written.
    pub(crate) fn of(image_dir: &Path) -> Self {
        let path = image_dir.canonicalize().unwrap_or_else(|_| image_dir.to_owned());
        let hash = &hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()))[..HASH_DIGITS];
        Self { name: format!("skep-bake-{hash}"), folder: Path::new(RUN_DIR).join(format!("bake-{hash}")) }
    }

    /// Ends and removes whatever is there. The caller holds the image directory's lock.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        // First the processes: what they hold cannot go before them.
        self.end_processes()?;
        Network::destroy(&self.name).map_err(network_failed)?;
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(self.folder.display())(error))
            }
            _ => Ok(()),
        }
    }

    /// Ends the processes that are there, and removes their control groups.
    pub(crate) fn end_processes(&self) -> Result<(), Error> {
        let record = self.folder.join(CGROUP_RECORD);
        for line in fs::read_to_string(&record).unwrap_or_default().lines() {
            let path = Path::new(line);
            if path.file_name().is_some_and(|name| *name == *self.name) {
                skep_jail::cgroup::remove_tree(path).map_err(jail_failed)?;
            }
        }
        Ok(())
    }
}

/// What the processes of a bake live in, until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    site: Site,
    tree: Tree,
    /// Where programs run.
    pub(crate) pen: Pen,
}

impl Place {
    /// Makes it, in place of what a killed bake left. The caller holds the image directory's lock.
    pub(crate) fn make(site: Site) -> Result<Self, Error> {
        site.clear()?;
        let folder = &site.folder;
        let make = |mode, path: &Path| {
            DirBuilder::new().recursive(true).mode(mode).create(path).map_err(Error::io(path.display()))
        };
        make(0o755, Path::new(RUN_DIR))?;
        make(0o700, folder)?;
        // Whatever is in a tree of that name is nobody's: the caller holds the lock.
        Tree::create(&site.name).and_then(|tree| tree.remove()).map_err(jail_failed)?;
        let tree = Tree::create(&site.name).map_err(jail_failed)?;
        let paths: Vec<String> = tree.paths().map(|path| path.display().to_string()).collect();
        let record = folder.join(CGROUP_RECORD);
        // Before the first process is in it.
        let recorded = fs::write(&record, paths.join("\n")).map_err(Error::io(record.display()));
        let limits = CgroupLimits {
            memory_bytes: i64::MAX.unsigned_abs(),
            pids: PROGRAMS_PIDS,
            cpu_weight: 100,
            cpu_percent: None,
        };
        match recorded.and_then(|()| tree.group("programs", &limits).map_err(jail_failed)) {
            Ok(group) => Ok(Self { site, tree, pen: Pen(group) }),
            Err(error) => {
                let _ = tree.remove();
                let _ = site.clear();
                Err(error)
            }
        }
    }

    /// The name of its network namespace.
    pub(crate) fn name(&self) -> &str {
        &self.site.name
    }

    /// The path of a socket.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.site.folder.join(name)
    }

    /// Takes away what a boot made here, whose VMM has ended: network, sockets, its group.
    pub(crate) fn clear_for_another_boot(&self) -> Result<(), Error> {
        Network::destroy(self.name()).map_err(network_failed)?;
        for path in ["monitor", "agent", "console"].map(|name| self.socket(name)) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io(path.display())(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A group for a VMM.
    pub(crate) fn group(&self, name: &str, limits: &CgroupLimits) -> Result<Cgroup, Error> {
        self.tree.group(name, limits).map_err(jail_failed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.site.clear() {
            tracing::warn!(%error, "what the bake made on this machine stays until the next one: {error}");
        }
    }
}

pub(crate) fn jail_failed(error: skep_jail::Error) -> Error {
    Error::Jail(error.to_string())
}

pub(crate) fn network_failed(error: skep_network::Error) -> Error {
    Error::Jail(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_directory_has_one_site_however_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(Site::of(&real).name, Site::of(&link).name);
        assert_ne!(Site::of(&real).name, Site::of(dir.path()).name);
    }

    #[test]
    fn a_socket_path_fits_into_an_address() {
        let path = Site::of(Path::new("/a")).folder.join("console");
        assert!(path.as_os_str().len() < 108);
    }
}
