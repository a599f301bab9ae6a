//! A branch of a remote, and a pack of what is new of it: on the server, or where the remote is.

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
        // What is below was never known there, whatever stands on it: a branch that left from there comes whole.
        brief.begin_at(&self.boundary).await?;
        let mut wanted = format!("{commit}\n");
        for known in brief.there(&self.has).await? {
            let _ = writeln!(wanted, "^{known}");
        }
        let pack = packed(repository, wanted)?;
        Ok((Fetched { commit }, keeping(brief, pack)))
    }
}

/// Packs a branch of a repository of this place, less what is known.
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
    // The lines that pack-objects(1) reads: what is below the boundary is not known there.
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

/// A pack, whose repository stays as long as somebody reads it.
pub(super) fn keeping(brief: Brief, pack: Content) -> Content {
    Box::pin(pack.map(move |piece| {
        let _stays = &brief;
        piece
    }))
}
