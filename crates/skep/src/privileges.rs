//! Working on the server's files as their owner.

use std::{os::unix::fs::MetadataExt, path::Path};

use anyhow::Context;
use rustix::{
    process::{Gid, Uid, geteuid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// Becomes, for good, the owner of a folder, where we are root and it is somebody else's: a file that root leaves in it
/// would lock its owner out. To be called before any other thread exists.
pub(crate) fn become_owner_of(folder: &Path) -> anyhow::Result<()> {
    let owner = folder.metadata().with_context(|| format!("{} cannot be looked at", folder.display()))?;
    if !geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
    // The user last: afterwards nothing may be changed any more.
    set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .with_context(|| {
            format!("root could not become the owner of {} (uid {})", folder.display(), owner.uid())
        })
}
