//! From the kernel's start to a system that can take an identity.

use crate::{error::Error, files, groups, modules, mounts, network};

/// Boots. Runs once per template, long before any VM is restored from it.
pub(crate) fn boot() -> Result<(), Error> {
    mounts::kernel_views("")?;
    modules::load_all()?;
    mounts::enter_root()?;
    groups::prepare()?;
    files::prepare()?;
    network::all_up()
}
