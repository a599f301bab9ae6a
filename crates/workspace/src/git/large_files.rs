//! Support for git-lfs(1), if the operator allowed its filter: sends large files before a push, fetches them before a
//! checkout, and defines which config of git-lfs a repository may have.

use std::collections::BTreeSet;

use skep_api::git::GitReach;

use super::{
    GitError,
    config::{ConfigEntry, has_several_meanings, last_value, parse_config_list, split_key},
    filters::LFS,
    hosts::Protocol,
    remote::Remote,
    repository::{Repository, is_hash},
    upstream::Upstream,
};
use crate::{Error, roots::FinalLink};

/// Limit of the list of a commit's large files, in bytes.
const MAX_LIST_BYTES: usize = 16 << 20;
/// The end of git's message if the filter of a file fails (convert.c).
const FAILED_FILTER: &str = "filter lfs failed";
/// Git's message if a commit does not have a config file (config.c).
const NO_SUCH_FILE: &str = "unable to resolve config blob";

/// Config keys of git-lfs (git-lfs-config(5)) that start no program. For those with URLs see [`ServerUrls`].
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

/// Sends the large files of a branch, whose commit is this one, as the pre-push hook of git-lfs would do. Hooks never run here.
///
/// # Errors
/// The error that the remote reports.
pub(super) async fn push(
    repository: &Repository,
    upstream: &Upstream,
    branch: &str,
    commit: &str,
) -> Result<(), Error> {
    if !repository.overrides.has_large_files() || !has_stored_files(repository).await? {
        return Ok(());
    }
    let branch = format!("refs/heads/{branch}");
    let git = upstream.large_files_git(repository, commit).await?;
    let output = git.args(["push", &upstream.name, &branch]).run().await?;
    if output.is_success() { Ok(()) } else { Err(upstream.remote_error(&output).into()) }
}

/// Fetches the large files of a commit, if some are not stored in the repository. The filter that puts them into the work tree
/// has no connection.
///
/// # Errors
/// The error that the remote reports.
pub(super) async fn fetch(repository: &Repository, upstream: &Upstream, commit: &str) -> Result<(), Error> {
    if is_incomplete(repository, commit).await? {
        run_fetch(repository, upstream, commit).await?;
    }
    Ok(())
}

async fn run_fetch(repository: &Repository, upstream: &Upstream, commit: &str) -> Result<(), Error> {
    let git = upstream.large_files_git(repository, commit).await?;
    let output = git.args(["fetch", &upstream.name, commit]).run().await?;
    if output.is_success() { Ok(()) } else { Err(upstream.remote_error(&output).into()) }
}

/// Runs an operation that checks out this revision, after fetching its large files from the remote of the current branch.
///
/// # Errors
/// Those of [`checked_out`].
pub(super) async fn check_out<T>(
    repository: &Repository,
    revision: &str,
    reach: &GitReach,
    operation: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    if !repository.overrides.has_large_files() {
        return operation.await;
    }
    let Some(commit) = checkout_commit(repository, revision).await? else { return operation.await };
    let fetched = fetch_from_default_remote(repository, &commit, reach).await;
    checked_out(repository, &commit, fetched, operation).await
}

/// Runs an operation that checks out this commit, after an attempt to fetch its large files. The operation may not need the missing
/// ones, so a failed fetch is an error only if it does.
///
/// # Errors
/// Those of the operation and of the fetch.
pub(super) async fn checked_out<T>(
    repository: &Repository,
    commit: &str,
    fetched: Result<(), Error>,
    operation: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Err(fetch) = fetched else { return operation.await };
    // Git would stop after it has changed a part of the work tree.
    if let Some(head) = repository.head().await?
        && !leaves_files_out(repository, commit).await?
    {
        let (here, there) = tokio::try_join!(list(repository, &head), list(repository, commit))?;
        let new = there.difference(&here).cloned().collect();
        if is_missing_some(repository, new).await? {
            return Err(fetch);
        }
    }
    match operation.await {
        Err(error) if error.to_string().contains(FAILED_FILTER) => Err(fetch),
        outcome => outcome,
    }
}

/// Whether a setting excludes some of the large files of a commit from fetches.
async fn leaves_files_out(repository: &Repository, commit: &str) -> Result<bool, Error> {
    let settings = commit_settings(repository, commit).await?;
    let excludes = |key: &[u8]| key == b"lfs.fetchexclude" || key == b"lfs.fetchinclude";
    Ok(settings.iter().chain(&repository.config).any(|entry| excludes(&entry.key)))
}

async fn fetch_from_default_remote(
    repository: &Repository,
    commit: &str,
    reach: &GitReach,
) -> Result<(), Error> {
    if !is_incomplete(repository, commit).await? {
        return Ok(());
    }
    let branch = repository.branch().await?;
    match Upstream::find(&repository.place, repository, None, branch.as_deref(), reach, false).await {
        Ok(upstream) => run_fetch(repository, &upstream, commit).await,
        // There is nothing to fetch from. If git needs what is missing, it says so.
        Err(Error::Git(GitError::UnknownRemote { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The commit that a checkout of this revision makes current. Git also takes the branch of a remote that has this name.
async fn checkout_commit(repository: &Repository, revision: &str) -> Result<Option<String>, Error> {
    if let Ok(commit) = repository.resolve("ref", revision, "commit").await {
        return Ok(Some(commit));
    }
    let pattern = format!("refs/remotes/*/{revision}");
    let git =
        repository.read_only_git().args(["for-each-ref", "--format=%(objectname)", "--count=1", &pattern]);
    Ok(Some(git.run().await?.stdout_text()).filter(|hash| is_hash(hash)))
}

/// Whether a large file of a commit is not stored in the repository.
async fn is_incomplete(repository: &Repository, commit: &str) -> Result<bool, Error> {
    if !refers_to_large_files(repository, commit).await? {
        return Ok(false);
    }
    let hashes = list(repository, commit).await?;
    is_missing_some(repository, hashes).await
}

/// The hashes of the large files of a commit.
///
/// # Errors
/// A list that is longer than its limit.
async fn list(repository: &Repository, commit: &str) -> Result<BTreeSet<String>, Error> {
    let git = repository.read_only_git().args(["lfs", "ls-files", "--long", commit]);
    let output = repository.run_checked(git.max_output(MAX_LIST_BYTES)).await?;
    if output.truncated {
        let message = format!("the list of the large files of {commit} has more than {MAX_LIST_BYTES} bytes");
        return Err(GitError::Other { message }.into());
    }
    // Each line begins with the SHA-256 of a file (git-lfs-ls-files(1)).
    let hashes =
        output.stdout.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line.get(..64)?).ok());
    Ok(hashes.filter(|hash| is_hash(hash)).map(str::to_owned).collect())
}

/// Whether a large file with one of these hashes is not stored in the repository.
async fn is_missing_some(repository: &Repository, hashes: BTreeSet<String>) -> Result<bool, Error> {
    let objects = repository.common_dir.join("lfs/objects");
    let looking = tokio::task::spawn_blocking(move || {
        let mut files = hashes.iter().map(|hash| objects.join(&hash[..2]).join(&hash[2..4]).join(hash));
        files.any(|file| !file.is_file())
    });
    looking.await.map_err(|_| Error::WorkerFailed)
}

/// Whether the attributes of a commit or of the repository may name the filter of git-lfs.
async fn refers_to_large_files(repository: &Repository, commit: &str) -> Result<bool, Error> {
    if !repository.overrides.has_large_files() {
        return Ok(false);
    }
    let (place, own) = (repository.place.clone(), repository.common_dir.join("info/attributes"));
    let looked = tokio::task::spawn_blocking(move || {
        place.roots().map(|roots| roots.find(&own, FinalLink::Follow).is_ok())
    });
    if looked.await.map_err(|_| Error::WorkerFailed)?? {
        return Ok(true);
    }
    let git = repository.read_only_git().env("GIT_LITERAL_PATHSPECS", "0");
    let pattern = format!("filter={LFS}");
    let git = git.args(["grep", "--quiet", "--fixed-strings", "-e", &pattern, commit]);
    // Git reports a missing object by another code.
    Ok(git.args(["--", ":(top,glob)**/.gitattributes"]).run().await?.code != Some(1))
}

/// The URLs of the server for large files.
pub(super) struct ServerUrls {
    pub(super) fetch: String,
    pub(super) push: String,
}

impl ServerUrls {
    /// The URLs that the settings of the repository, or those of `.lfsconfig` in this commit, name for a remote at `url`; `None` if
    /// one of them names another server than the remote's.
    ///
    /// # Errors
    /// `.lfsconfig` cannot be read.
    pub(super) async fn find(
        repository: &Repository,
        commit: &str,
        remote: &str,
        url: &str,
    ) -> Result<Option<Self>, Error> {
        let mut settings = commit_settings(repository, commit).await?;
        settings.extend_from_slice(&repository.config);
        if settings.iter().any(|entry| names_other_server(entry, url)) {
            return Ok(None);
        }
        let named = |keys: &[&str]| {
            let mut values = keys.iter().filter_map(|key| last_value(&settings, key.as_bytes()));
            values.next().map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let [of_fetches, of_pushes] = ["lfsurl", "lfspushurl"].map(|name| format!("remote.{remote}.{name}"));
        let fetch = named(&["lfs.url", &of_fetches]).unwrap_or_else(|| default_server_url(url));
        let push = named(&["lfs.pushurl", "lfs.url", &of_pushes, &of_fetches]);
        Ok(Some(Self { push: push.unwrap_or_else(|| default_server_url(url)), fetch }))
    }
}

/// The settings of `.lfsconfig` in a commit.
async fn commit_settings(repository: &Repository, commit: &str) -> Result<Vec<ConfigEntry>, Error> {
    let file = format!("{commit}:.lfsconfig");
    let git = repository.read_only_git().args(["config", "--blob", &file, "--list", "-z"]);
    let output = git.run().await?;
    if output.is_success() || output.stderr.contains(NO_SUCH_FILE) {
        return Ok(parse_config_list(&output.stdout));
    }
    Err(GitError::Other { message: output.message() }.into())
}

/// The URL that git-lfs derives from that of a remote (git-lfs-config(5), `lfs.url`).
fn default_server_url(url: &str) -> String {
    let url = url.trim_end_matches('/');
    let ending = if url.ends_with(".git") { "" } else { ".git" };
    format!("{url}{ending}/info/lfs")
}

/// Whether an entry names, for git-lfs, another server than that of the remote, or might do so.
fn names_other_server(entry: &ConfigEntry, remote: &str) -> bool {
    let ConfigEntry { key, value } = entry;
    match split_key(key) {
        _ if has_several_meanings(entry) => true,
        Some((b"lfs", b"", b"url" | b"pushurl") | (b"remote", _, b"lfsurl" | b"lfspushurl")) => {
            let server = value.as_deref().and_then(|value| str::from_utf8(value).ok());
            server.and_then(server_of) != server_of(remote)
        }
        _ => false,
    }
}

/// Protocol, host and port of a URL; `None` if it has none.
fn server_of(url: &str) -> Option<(Protocol, String, u16)> {
    let remote = Remote::parse(url).ok()?;
    remote.host().map(|host| (host.protocol, host.name.to_ascii_lowercase(), host.port()))
}

/// Whether any large file is stored in this repository.
async fn has_stored_files(repository: &Repository) -> Result<bool, Error> {
    let folder = repository.common_dir.join("lfs/objects");
    tokio::task::spawn_blocking(move || folder.is_dir()).await.map_err(|_| Error::WorkerFailed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_server_is_that_of_git_lfs() {
        for url in ["https://git.example/x", "https://git.example/x.git", "https://git.example/x.git/"] {
            assert_eq!(default_server_url(url), "https://git.example/x.git/info/lfs", "{url}");
        }
    }

    #[test]
    fn a_server_that_is_not_the_remotes_is_recognised() {
        let remote = "https://Git.example/x.git";
        let named = |key: &str, value: Option<&str>| {
            let entry = ConfigEntry { key: key.into(), value: value.map(|value| value.as_bytes().to_vec()) };
            names_other_server(&entry, remote)
        };
        for key in ["lfs.url", "lfs.pushurl", "remote.a.b.lfsurl", "remote.origin.lfspushurl"] {
            for same in ["https://git.example/x.git/info/lfs", "https://git.example:443/other"] {
                assert!(!named(key, Some(same)), "{key} {same}");
            }
            for other in [
                "https://git.example:8443/x",
                "https://git.example.evil/x",
                "https://git.example@evil.example/x",
                "http://git.example/x",
                "ssh://git@git.example/x",
                "git@git.example:x",
                "file:///x",
                "/x",
                "",
                "https://git.example/x\nlfs.url=https://evil.example/x",
            ] {
                assert!(named(key, Some(other)), "{key} {other}");
            }
            assert!(named(key, None), "{key}");
        }
        assert!(named("lfs.url=https://evil.example/?.locksverify", Some("true")));
        for key in ["lfs.https://evil.example/.locksverify", "remote.origin.url", "lfs.concurrenttransfers"] {
            assert!(!named(key, Some("https://evil.example/x")), "{key}");
        }
    }
}
