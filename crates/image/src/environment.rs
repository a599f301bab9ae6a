//! Resources of a bake outside of its image directory: control groups, network namespace and sockets. Also removes what
//! a killed bake left.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use skep_jail::{Cgroup, CgroupLimits, CgroupTree};
use skep_network::Network;
use skep_template::hex;

use crate::{Error, command::Containment};

/// Directory for sockets. Their paths are limited to 108 bytes, and the path of an image directory may be long.
const RUN_DIR: &str = "/run/skep";
/// Hex digits of the hash that identifies an image directory.
const HASH_DIGITS: usize = 12;
/// File with the paths of the control groups. Those inside a systemd unit cannot be found from outside of it.
const CGROUP_RECORD: &str = "cgroups";
/// Limit of processes of the programs; more than any of them needs.
const PROGRAMS_PIDS: u64 = 4096;

/// Names of the resources that a bake creates outside of its image directory. They are derived from that directory, so
/// that the next bake finds what a killed one left.
#[derive(Debug, Clone)]
pub(crate) struct ResourceNames {
    name: String,
    folder: PathBuf,
}

impl ResourceNames {
    /// The names for an image directory, independent of how its path is written.
    pub(crate) fn of(image_dir: &Path) -> Self {
        let path = image_dir.canonicalize().unwrap_or_else(|_| image_dir.to_owned());
        let hash = &hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()))[..HASH_DIGITS];
        Self { name: format!("skep-bake-{hash}"), folder: Path::new(RUN_DIR).join(format!("bake-{hash}")) }
    }

    /// Removes all resources with these names. The caller holds the lock of the image directory.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        // Processes first, because resources in use cannot be removed.
        self.end_processes()?;
        Network::destroy(&self.name).map_err(network_failed)?;
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(self.folder.display())(error))
            }
            _ => Ok(()),
        }
    }

    /// Ends the processes and removes their control groups.
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

/// Resources of a running bake, removed on drop.
#[derive(Debug)]
pub(crate) struct BakeEnvironment {
    names: ResourceNames,
    tree: CgroupTree,
    pub(crate) containment: Containment,
}

impl BakeEnvironment {
    /// Removes what a killed bake left and creates the resources. The caller holds the lock of the image directory.
    pub(crate) fn create(site: ResourceNames) -> Result<Self, Error> {
        site.clear()?;
        let folder = &site.folder;
        let make = |mode, path: &Path| {
            DirBuilder::new().recursive(true).mode(mode).create(path).map_err(Error::io(path.display()))
        };
        make(0o755, Path::new(RUN_DIR))?;
        make(0o700, folder)?;
        // An existing tree of that name is unused, because the caller holds the lock.
        CgroupTree::create(&site.name).and_then(|tree| tree.remove()).map_err(jail_failed)?;
        let tree = CgroupTree::create(&site.name).map_err(jail_failed)?;
        let paths: Vec<String> = tree.paths().map(|path| path.display().to_string()).collect();
        let record = folder.join(CGROUP_RECORD);
        // Recorded before the first process is started in a group.
        let recorded = fs::write(&record, paths.join("\n")).map_err(Error::io(record.display()));
        let limits = CgroupLimits {
            memory_bytes: i64::MAX.unsigned_abs(),
            pids: PROGRAMS_PIDS,
            cpu_weight: 100,
            cpu_percent: None,
        };
        match recorded.and_then(|()| tree.create_group("programs", &limits).map_err(jail_failed)) {
            Ok(group) => Ok(Self { names: site, tree, containment: Containment(group) }),
            Err(error) => {
                let _ = tree.remove();
                let _ = site.clear();
                Err(error)
            }
        }
    }

    /// Name of the network namespace.
    pub(crate) fn name(&self) -> &str {
        &self.names.name
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.names.folder.join(name)
    }

    /// Removes the network and sockets of a boot whose VMM has ended.
    pub(crate) fn clear_boot(&self) -> Result<(), Error> {
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

    /// Creates a control group.
    pub(crate) fn group(&self, name: &str, limits: &CgroupLimits) -> Result<Cgroup, Error> {
        self.tree.create_group(name, limits).map_err(jail_failed)
    }
}

impl Drop for BakeEnvironment {
    fn drop(&mut self) {
        if let Err(error) = self.names.clear() {
            tracing::warn!(%error, "the resources of the bake remain until the next bake: {error}");
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
    fn names_do_not_depend_on_how_the_image_directory_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(ResourceNames::of(&real).name, ResourceNames::of(&link).name);
        assert_ne!(ResourceNames::of(&real).name, ResourceNames::of(dir.path()).name);
    }

    #[test]
    fn a_socket_path_fits_into_an_address() {
        let path = ResourceNames::of(Path::new("/a")).folder.join("console");
        assert!(path.as_os_str().len() < 108);
    }
}
