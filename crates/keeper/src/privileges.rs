//! Whether the keeper runs as root.
//!
//! Without root it starts server and helpers as its own user, without namespaces and control groups, and runs no VMs.
//! Everything that it makes is then in the data directory.

use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};

use crate::Error;

pub(crate) fn has_root() -> bool {
    geteuid().is_root()
}

/// For a keeper without root: programs of callers run as the same user in the same PID namespace, and must not read its
/// memory or take its descriptors.
pub(crate) fn protect_from_same_user() -> Result<(), Error> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(Error::io("make the keeper undumpable"))
}
