//! On the server: the commit of a pack, sent to a remote.

use skep_api::git::{GitSend, NETWORK_LIMIT, Sent};

use super::{boundary, brief::Brief, check_hash, elsewhere};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{
        Refused,
        branch::check_name,
        push::{pushed, quietly},
        repository::Repository,
    },
    streamed::no_content,
};

impl RunStreamed for GitSend {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(Sent, Content), Error> {
        check_hash(&self.commit)?;
        boundary::check(&self.boundary)?;
        let remote = elsewhere(&self.url)?;
        let brief = Brief::make(place).await?;
        let repository = &brief.repository;
        check_name(repository, "branch", &self.branch).await?;
        take_in(repository, content).await?;
        brief.begin_at(&self.boundary).await?;
        let way = remote.open(&self.url, &self.reach, &repository.settings).await?;
        let git = way.git(|settings| Repository { settings: settings.clone(), ..repository.clone() }.git());
        let whole = format!("refs/heads/{}", self.branch);
        // What is expected there; nothing where the branch was never seen.
        let seen = self.last_seen.as_deref().unwrap_or_default();
        if !seen.is_empty() {
            check_hash(seen)?;
        }
        let lease = self.force_with_lease.then(|| format!("--force-with-lease={whole}:{seen}"));
        let git = quietly(git.args(["push"])).args(lease);
        let said = git.args(["--", &self.url, &format!("{}:{whole}", self.commit)]).run().await?;
        let (from, created) =
            pushed(repository, &said, &self.branch, &self.commit, || way.failed(&said)).await?;
        Ok((Sent { from: from.or(self.last_seen.filter(|_| !created)), created }, no_content()))
    }
}

/// Takes a pack into a repository.
///
/// # Errors
/// It broke off, or is none.
pub(super) async fn take_in(repository: &Repository, pack: Content) -> Result<(), Error> {
    let git = repository.git().within(NETWORK_LIMIT).stdin(Vec::new());
    let said = git.args(["index-pack", "--stdin"]).run_fed(pack).await?;
    if said.done() { Ok(()) } else { Err(Refused::BrokenOff { words: said.words() }.into()) }
}
