//! Working on files as their owner instead of as root.

use std::{os::unix::fs::MetadataExt, path::Path};

use anyhow::{Context, bail};
use rustix::{
    process::{Gid, Uid, geteuid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// Runs `work` as the owner of a folder, if the process is root and the folder belongs to another user. The process
/// keeps its user.
///
/// The result may hold files that `work` opened: root then reads exactly those, and nothing that the owner replaced
/// afterwards.
pub(crate) fn as_owner_of<T: Send>(
    folder: &Path,
    work: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    // The kernel keeps credentials per thread, and this thread ends with the work.
    std::thread::scope(|scope| {
        let done = scope.spawn(|| become_owner_of(folder).and_then(|()| work())).join();
        done.unwrap_or_else(|_| bail!("work as the owner of {} panicked", folder.display()))
    })
}

/// Changes the process permanently to the owner of a folder, if it is root and the folder belongs to another user:
/// files that root creates in it would lock the owner out. Must be called before other threads exist.
pub(crate) fn become_owner_of(folder: &Path) -> anyhow::Result<()> {
    let owner = folder.metadata().with_context(|| format!("{} cannot be read", folder.display()))?;
    if !geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
    // The user last: changing the groups needs root.
    set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .with_context(|| {
            format!("root could not become the owner of {} (uid {})", folder.display(), owner.uid())
        })
}
