//! Working on the server's files as their owner.

use std::{os::unix::fs::MetadataExt, path::Path};

use anyhow::{Context, bail};
use rustix::{
    process::{Gid, Uid, geteuid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// Does something as the owner of a folder, where we are root and it is somebody else's, and stays who we are.
///
/// What it opens is handed back: that is how root reads what it was given, and never what its owner made of it meanwhile.
pub(crate) fn as_owner_of<T: Send>(
    folder: &Path,
    work: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    // To the kernel a user is a matter of each thread, and this one ends with the work.
    std::thread::scope(|scope| {
        let done = scope.spawn(|| become_owner_of(folder).and_then(|()| work())).join();
        done.unwrap_or_else(|_| bail!("work as the owner of {} panicked", folder.display()))
    })
}

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
