//! Boots the guest up to the point where it can receive an identity.

use crate::{error::Error, files, groups, modules, mounts, network};

/// Boots the guest. Runs once per template, before the snapshot that VMs are restored from.
pub(crate) fn boot() -> Result<(), Error> {
    mounts::mount_kernel_filesystems("")?;
    modules::load_all()?;
    mounts::enter_root()?;
    groups::prepare()?;
    files::prepare()?;
    network::bring_all_up()
}
