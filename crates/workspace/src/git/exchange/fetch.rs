//! On the server: a branch of a remote, and a pack of what is new of it.

use std::fmt::Write;

use futures_util::StreamExt;
use skep_api::git::{Fetched, GitFetch};

use super::{boundary, brief::Brief, check_hash, elsewhere, pack::packed};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{branch::check_name, pull::fetched, repository::Repository},
    streamed::no_content,
};

impl RunStreamed for GitFetch {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(Fetched, Content), Error> {
        let remote = elsewhere(&self.url)?;
        for known in &self.has {
            check_hash(known)?;
        }
        boundary::check(&self.boundary)?;
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
        // The repository stays as long as somebody reads out of it.
        let pack = pack.map(move |piece| {
            let _stays = &brief;
            piece
        });
        Ok((Fetched { commit }, Box::pin(pack)))
    }
}
