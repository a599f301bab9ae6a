//! Support for git-lfs(1), if the operator allowed its filter: sends large files before a push, and defines which
//! config of git-lfs a repository may have.

use super::{program::Git, repository::Repository, upstream::Upstream};
use crate::Error;

/// Config keys of git-lfs (git-lfs-config(5)) that start no program. Keys with URLs are harmless because git-lfs can
/// only use the connection that was prepared for it.
const HARMLESS: [&[u8]; 23] = [
    b"url",
    b"pushurl",
    b"access",
    b"locksverify",
    b"repositoryformatversion",
    b"fetchinclude",
    b"fetchexclude",
    b"fetchrecentalways",
    b"concurrenttransfers",
    b"activitytimeout",
    b"dialtimeout",
    b"tlstimeout",
    b"skipdownloaderrors",
    b"allowincompletepush",
    b"basictransfersonly",
    b"contenttype",
    b"fetchrecentcommitsdays",
    b"fetchrecentrefsdays",
    b"lockignoredfiles",
    b"maxretries",
    b"maxretrydelay",
    b"maxverifies",
    b"setlockablereadonly",
];

/// Whether the key `lfs.NAME` starts no program.
pub(super) fn is_harmless(name: &[u8]) -> bool {
    HARMLESS.contains(&name)
}

/// Sends the large files of a branch, as the pre-push hook of git-lfs would do. Hooks never run here.
///
/// # Errors
/// The error that the remote reports.
pub(super) async fn push(repository: &Repository, upstream: &Upstream, branch: &str) -> Result<(), Error> {
    if !repository.overrides.has_large_files() || !has_stored_files(repository).await? {
        return Ok(());
    }
    let git: Git = upstream.transport_git(repository).args(["lfs", "push", &upstream.name]);
    let output = git.args([format!("refs/heads/{branch}")]).run().await?;
    if output.is_success() { Ok(()) } else { Err(upstream.remote_error(&output).into()) }
}

/// Whether any large file is stored in this repository.
async fn has_stored_files(repository: &Repository) -> Result<bool, Error> {
    let folder = repository.common_dir.join("lfs/objects");
    tokio::task::spawn_blocking(move || folder.is_dir()).await.map_err(|_| Error::WorkerFailed)
}
