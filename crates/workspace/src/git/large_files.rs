//! Large files (git-lfs(1)), where the operator named their filter: what a push sends besides, and which settings of a
//! repository they may heed.

use super::{program::Git, repository::Repository, upstream::Upstream};
use crate::Error;

/// Settings of git-lfs (git-lfs-config(5)) that start no program. Those that name where large files are only lead to
/// where the way leads that was opened.
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

/// Whether a setting, by its last name, starts nothing.
pub(super) fn is_harmless(name: &[u8]) -> bool {
    HARMLESS.contains(&name)
}

/// Sends the large files of a branch, as the hook of git-lfs does before a push: no hook runs here.
///
/// # Errors
/// What the remote says.
pub(super) async fn send(repository: &Repository, upstream: &Upstream, branch: &str) -> Result<(), Error> {
    if !repository.settings.has_large_files() || !keeps_some(repository).await? {
        return Ok(());
    }
    let git: Git = upstream.plain_git(repository).args(["lfs", "push", &upstream.name]);
    let said = git.args([format!("refs/heads/{branch}")]).run().await?;
    if said.done() { Ok(()) } else { Err(upstream.failed(&said).into()) }
}

/// Whether any large file was ever stored here.
async fn keeps_some(repository: &Repository) -> Result<bool, Error> {
    let folder = repository.common_dir.join("lfs/objects");
    tokio::task::spawn_blocking(move || folder.is_dir()).await.map_err(|_| Error::Broken)
}
