//! Removal of the resources that a crashed keeper left on the machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use skep_jail::CgroupTree;
use skep_network::Network;

use crate::{
    DataDir, Error,
    data_dir::{remove_dir_all, remove_file},
    lock::Lock,
    privileges::has_root,
    records::Records,
    uid_blocks,
};

/// Removes everything that a crashed keeper of a data directory left on this machine, its VMs included. The data stays.
/// Blocks.
///
/// # Errors
/// [`Error::Locked`] while a server runs there; or something could not be removed.
pub fn clean_data_dir(path: &Path) -> Result<(), Error> {
    let data_dir = DataDir::find(path)?;
    if !data_dir.keeper().is_dir() {
        return Ok(());
    }
    let lock = Lock::take(&data_dir)?;
    let outcome = remove_leftovers(&data_dir);
    lock.release()?;
    outcome
}

/// Records the paths of the cgroups of VMs. They may be below the cgroup of a service unit, where a keeper outside of
/// the unit would not look for them.
pub(crate) fn record_cgroups(data_dir: &DataDir, tree: &CgroupTree) -> Result<(), Error> {
    record(&data_dir.cgroup_record(), tree)
}

/// Records the paths of the cgroups of helpers.
pub(crate) fn record_helper_groups(data_dir: &DataDir, tree: &CgroupTree) -> Result<(), Error> {
    record(&data_dir.helper_cgroup_record(), tree)
}

/// Removes the record of the cgroups of helpers. Call it after the groups are removed.
pub(crate) fn remove_helper_groups_record(data_dir: &DataDir) -> Result<(), Error> {
    remove_file(&data_dir.helper_cgroup_record())
}

fn record(record: &Path, tree: &CgroupTree) -> Result<(), Error> {
    let paths: Vec<String> = tree.paths().map(|path| path.display().to_string()).collect();
    write_if_changed(record, &paths.join("\n"))
}

/// Writes a record unless it has this text already, as after a restart. On a full disk the write fails, and a keeper that fails to
/// start ends the VMs that it should take over.
fn write_if_changed(record: &Path, text: &str) -> Result<(), Error> {
    if fs::read_to_string(record).is_ok_and(|found| found == text) {
        return Ok(());
    }
    fs::write(record, text).map_err(Error::io(record.display().to_string()))
}

/// Removes all leftovers. The caller holds the lock. A keeper without root leaves none.
pub(crate) fn remove_leftovers(data_dir: &DataDir) -> Result<(), Error> {
    if !has_root() {
        return Ok(());
    }
    // Processes first: the resources that they hold cannot be removed before.
    recorded_trees(data_dir).iter().try_for_each(|path| skep_jail::cgroup::remove_tree(path))?;
    remove_file(&data_dir.cgroup_record())?;
    let helpers = recorded(&data_dir.helper_cgroup_record(), &data_dir.helpers_name());
    helpers.iter().try_for_each(|path| skep_jail::cgroup::remove_tree(path))?;
    remove_helper_groups_record(data_dir)?;
    Network::destroy(&data_dir.name())?;
    remove_dir_all(&data_dir.sockets())?;
    Records::of(data_dir).remove_all_but(|_| false)?;
    uid_blocks::remove_stale(data_dir)
}

/// Removes recorded cgroups that an earlier keeper created in other places than `tree`. The caller holds the lock.
pub(crate) fn remove_other_trees(data_dir: &DataDir, tree: &CgroupTree) -> Result<(), Error> {
    let elsewhere = recorded_trees(data_dir).into_iter().filter(|path| !tree.paths().any(|own| own == path));
    elsewhere.into_iter().try_for_each(|path| Ok(skep_jail::cgroup::remove_tree(&path)?))
}

pub(crate) fn recorded_trees(data_dir: &DataDir) -> Vec<PathBuf> {
    recorded(&data_dir.cgroup_record(), &data_dir.name())
}

pub(crate) fn recorded(record: &Path, name: &str) -> Vec<PathBuf> {
    let text = fs::read_to_string(record).unwrap_or_default();
    let ours = |path: &PathBuf| path.file_name().is_some_and(|found| *found == *name);
    text.lines().map(PathBuf::from).filter(ours).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::SystemTime};

    use super::*;

    #[test]
    fn an_unchanged_record_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("cgroups");
        write_if_changed(&record, "/one").unwrap();
        let old = SystemTime::UNIX_EPOCH;
        File::options().write(true).open(&record).unwrap().set_modified(old).unwrap();
        write_if_changed(&record, "/one").unwrap();
        assert_eq!(record.metadata().unwrap().modified().unwrap(), old);
        write_if_changed(&record, "/other").unwrap();
        assert_eq!(fs::read_to_string(&record).unwrap(), "/other");
    }
}
