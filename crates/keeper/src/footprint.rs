//! The resources of a server outside of its data directory, which `skep uninstall` lists before it removes them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    DataDir, Error,
    cleanup::{recorded, recorded_trees},
    data_dir::RUN_DIR,
    records::Records,
};

/// Folder of named network namespaces.
const NAMESPACES: &str = "/run/netns";
/// Prefix of the names of skep's namespaces.
const PREFIX: &str = "skep-";

/// The resources of a server outside of its data directory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Number of recorded VMs, which may still run.
    pub vms: usize,
    /// The cgroups of VMs and of helpers.
    pub groups: Vec<PathBuf>,
    /// The path of the network namespace.
    pub namespace: Option<PathBuf>,
    /// The folder of the sockets.
    pub sockets: Option<PathBuf>,
}

/// The keys of the templates that VMs on record were restored from. A copy of such a VM needs the files of its template.
/// This function blocks.
///
/// # Errors
/// The records cannot be read.
pub fn template_keys_of_vms(data_dir: &Path) -> Result<BTreeSet<String>, Error> {
    if !data_dir.is_dir() {
        return Ok(BTreeSet::new());
    }
    let data_dir = DataDir::find(data_dir)?;
    let vmms = Records::of(&data_dir).read()?.into_iter().filter_map(|record| record.vmm);
    Ok(vmms.map(|vmm| vmm.template_key).collect())
}

impl Footprint {
    /// The resources that the server of this data directory uses or left behind. Blocks.
    pub fn of(data_dir: &DataDir) -> Self {
        let records = fs::read_dir(data_dir.records()).map_or(0, Iterator::count);
        let helpers = recorded(&data_dir.helper_cgroup_record(), &data_dir.helpers_name());
        let groups = recorded_trees(data_dir).into_iter().chain(helpers).filter(|path| path.is_dir());
        let existing = |path: PathBuf| path.exists().then_some(path);
        Self {
            vms: records,
            groups: groups.collect(),
            namespace: existing(Path::new(NAMESPACES).join(data_dir.name())),
            sockets: existing(data_dir.sockets()),
        }
    }
}

/// Whether another data directory has resources on this machine, for example because a server runs there. Blocks.
pub fn other_data_dirs_have_resources(data_dir: &DataDir) -> bool {
    let names = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    let own = data_dir.hash();
    let is_other =
        |hash: &str| hash != own && hash.len() == own.len() && hash.bytes().all(|b| b.is_ascii_hexdigit());
    names(RUN_DIR).any(|name| is_other(&name))
        || names(NAMESPACES).any(|name| name.strip_prefix(PREFIX).is_some_and(is_other))
}
