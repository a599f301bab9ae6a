//! Fetches a branch of a remote and packs its new commits: on the server, or in the workspace of the remote.

use std::fmt::Write;

use futures_util::StreamExt;
use skep_api::{
    AbsolutePath,
    git::{Fetched, GitFetch},
    path::PathEncoding,
};

use super::{
    boundary, check_hash, pack::pack_revisions, parse_network_remote, temporary::TemporaryRepository,
};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{
        GitError, branch::check_branch_name, pull::fetch_branch, remote::redacted, repository::Repository,
    },
    streamed::no_content,
};

impl RunStreamed for GitFetch {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(Fetched, Content), Error> {
        for known in &self.has {
            check_hash(known)?;
        }
        boundary::check(&self.boundary)?;
        if self.here {
            return fetch_local(&self, place).await;
        }
        let remote = parse_network_remote(&self.url)?;
        let temporary = TemporaryRepository::create(place).await?;
        let repository = &temporary.repository;
        check_branch_name(repository, "branch", &self.branch).await?;
        let transport = remote.connect(&self.url, &self.reach, &repository.overrides).await?;
        let git =
            transport.git(|settings| Repository { overrides: settings.clone(), ..repository.clone() }.git());
        let git = git.args(["fetch", "--no-tags"]);
        let commit = fetch_branch(repository, git, &self.url, "the remote", &self.branch, |output| {
            transport.remote_error(output)
        })
        .await?;
        if self.has.contains(&commit) {
            return Ok((Fetched { commit }, no_content()));
        }
        // Commits below the boundary are not known in the VM, even if known commits descend from them. So a branch
        // that left the main history below the boundary is packed completely.
        temporary.set_boundary(&self.boundary).await?;
        let mut wanted = format!("{commit}\n");
        for known in temporary.existing_commits(&self.has).await? {
            let _ = writeln!(wanted, "^{known}");
        }
        let pack = pack_revisions(repository, wanted)?;
        Ok((Fetched { commit }, keep_until_read(temporary, pack)))
    }
}

/// Packs a branch of a repository in this workspace without the known commits.
async fn fetch_local(fetch: &GitFetch, place: &Place) -> Result<(Fetched, Content), Error> {
    let path = AbsolutePath::parse("url", &fetch.url, PathEncoding::Percent);
    let path = path.map_err(|_| GitError::UnknownRemote { remote: redacted(&fetch.url) })?;
    let repository = Repository::find(place, Some(&path)).await?;
    check_branch_name(&repository, "branch", &fetch.branch).await?;
    let commit = repository.resolve("branch", &format!("refs/heads/{}", fetch.branch), "commit").await;
    let unknown = || GitError::UnknownRevision { revision: fetch.branch.clone() };
    let commit = commit.map_err(|_| unknown())?;
    if fetch.has.contains(&commit) {
        return Ok((Fetched { commit }, no_content()));
    }
    // Input for pack-objects(1): commits below the boundary are not known at the destination.
    let mut wanted = String::new();
    for begin in boundary::existing_commits(&repository, &fetch.boundary).await? {
        let _ = writeln!(wanted, "--shallow {begin}");
    }
    let _ = writeln!(wanted, "{commit}");
    for known in boundary::existing_commits(&repository, &fetch.has).await? {
        let _ = writeln!(wanted, "^{known}");
    }
    Ok((Fetched { commit }, pack_revisions(&repository, wanted)?))
}

/// Keeps the temporary repository until its pack has been read.
pub(super) fn keep_until_read(brief: TemporaryRepository, pack: Content) -> Content {
    Box::pin(pack.map(move |piece| {
        let _stays = &brief;
        piece
    }))
}
