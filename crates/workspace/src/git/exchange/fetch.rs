//! Fetches a branch of a remote and packs its new commits: on the server, or in the workspace of the remote.

use std::fmt::Write;

use futures_util::StreamExt;
use skep_api::{
    AbsolutePath,
    git::{Fetched, GitFetch},
    path::PathEncoding,
};

use super::{boundary, brief::Brief, check_hash, elsewhere, pack::packed};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{Refused, branch::check_name, pull::fetched, remote::shown, repository::Repository},
    streamed::no_content,
};

impl RunStreamed for GitFetch {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(Fetched, Content), Error> {
        for known in &self.has {
            check_hash(known)?;
        }
        boundary::check(&self.boundary)?;
        if self.here {
            return of_this_place(&self, place).await;
        }
        let remote = elsewhere(&self.url)?;
        let brief = Brief::make(place).await?;
        let repository = &brief.repository;
        check_name(repository, "branch", &self.branch).await?;
        let way = remote.open(&self.url, &self.reach, &repository.settings).await?;
        let git = way.git(|settings| Repository { settings: settings.clone(), ..repository.clone() }.git());
        let git = git.args(["fetch", "--no-tags"]);
        let commit =
            fetched(repository, git, &self.url, "the remote", &self.branch, |said| way.failed(said)).await?;
        if self.has.contains(&commit) {
            return Ok((Fetched { commit }, no_content()));
        }
        // Commits below the boundary are not known in the VM, even if known commits descend from them. So a branch
        // that left the main history below the boundary is packed completely.
        brief.begin_at(&self.boundary).await?;
        let mut wanted = format!("{commit}\n");
        for known in brief.there(&self.has).await? {
            let _ = writeln!(wanted, "^{known}");
        }
        let pack = packed(repository, wanted)?;
        Ok((Fetched { commit }, keeping(brief, pack)))
    }
}

/// Packs a branch of a repository in this workspace without the known commits.
async fn of_this_place(fetch: &GitFetch, place: &Place) -> Result<(Fetched, Content), Error> {
    let path = AbsolutePath::parse("url", &fetch.url, PathEncoding::Percent);
    let path = path.map_err(|_| Refused::UnknownRemote { remote: shown(&fetch.url) })?;
    let repository = Repository::find(place, Some(&path)).await?;
    check_name(&repository, "branch", &fetch.branch).await?;
    let commit = repository.resolve("branch", &format!("refs/heads/{}", fetch.branch), "commit").await;
    let unknown = || Refused::UnknownRevision { revision: fetch.branch.clone() };
    let commit = commit.map_err(|_| unknown())?;
    if fetch.has.contains(&commit) {
        return Ok((Fetched { commit }, no_content()));
    }
    // Input for pack-objects(1): commits below the boundary are not known at the destination.
    let mut wanted = String::new();
    for begin in boundary::there(&repository, &fetch.boundary).await? {
        let _ = writeln!(wanted, "--shallow {begin}");
    }
    let _ = writeln!(wanted, "{commit}");
    for known in boundary::there(&repository, &fetch.has).await? {
        let _ = writeln!(wanted, "^{known}");
    }
    Ok((Fetched { commit }, packed(&repository, wanted)?))
}

/// Keeps the temporary repository until its pack has been read.
pub(super) fn keeping(brief: Brief, pack: Content) -> Content {
    Box::pin(pack.map(move |piece| {
        let _stays = &brief;
        piece
    }))
}
