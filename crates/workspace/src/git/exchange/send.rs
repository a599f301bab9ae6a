//! Pushes the commit of a pack to a remote: from the server, or in the workspace of the remote.

use std::path::PathBuf;

use skep_api::{
    AbsolutePath,
    git::{GitSend, NETWORK_LIMIT, Sent},
    path::PathEncoding,
};

use super::{boundary, brief::Brief, check_hash, elsewhere};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{
        Refused,
        branch::check_name,
        push::{pushed, quietly},
        remote::{Neighbour, Remote, shown},
        repository::Repository,
    },
    streamed::no_content,
};

impl RunStreamed for GitSend {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(Sent, Content), Error> {
        check_hash(&self.commit)?;
        boundary::check(&self.boundary)?;
        let target = Target::find(&self, place).await?;
        let brief = Brief::make(place).await?;
        let repository = &brief.repository;
        check_name(repository, "branch", &self.branch).await?;
        take_in(repository, content).await?;
        brief.begin_at(&self.boundary).await?;
        let way = target.remote().open(&self.url, &self.reach, &repository.settings).await?;
        let git = way.git(|settings| Repository { settings: settings.clone(), ..repository.clone() }.git());
        let whole = format!("refs/heads/{}", self.branch);
        // The expected commit of the remote branch; empty if it was never seen.
        let seen = self.last_seen.as_deref().unwrap_or_default();
        if !seen.is_empty() {
            check_hash(seen)?;
        }
        let lease = self.force_with_lease.then(|| format!("--force-with-lease={whole}:{seen}"));
        let git = quietly(git.args(["push"])).args(lease);
        let change = format!("{}:{whole}", self.commit);
        let said = match &target {
            Target::Here(neighbour) => {
                let line =
                    neighbour.connect("receive-pack").map_err(|source| Error::NotStarted { source })?;
                let git = git.args(["--", &line.url(), &change]);
                line.join(git).run().await?
            }
            Target::Elsewhere(_) => git.args(["--", &self.url, &change]).run().await?,
        };
        let (from, created) =
            pushed(repository, &said, &self.branch, &self.commit, || way.failed(&said)).await?;
        Ok((Sent { from: from.or(self.last_seen.filter(|_| !created)), created }, no_content()))
    }
}

/// The remote to push to.
enum Target {
    /// A repository in this workspace.
    Here(Neighbour),
    /// A remote in the network.
    Elsewhere(Remote),
}

impl Target {
    async fn find(send: &GitSend, place: &Place) -> Result<Self, Error> {
        if !send.here {
            return Ok(Self::Elsewhere(elsewhere(&send.url)?));
        }
        let path = AbsolutePath::parse("url", &send.url, PathEncoding::Percent);
        let path = path.map_err(|_| Refused::UnknownRemote { remote: shown(&send.url) })?;
        Ok(Self::Here(Neighbour::find(place, path.as_path()).await?))
    }

    fn remote(&self) -> Remote {
        match self {
            // The path does not matter: connections to local remotes need no network.
            Self::Here(_) => Remote::Local(PathBuf::new()),
            Self::Elsewhere(remote) => remote.clone(),
        }
    }
}

/// Stores a pack in a repository.
///
/// # Errors
/// An incomplete or invalid pack.
pub(super) async fn take_in(repository: &Repository, pack: Content) -> Result<(), Error> {
    let git = repository.git().within(NETWORK_LIMIT).stdin(Vec::new());
    let said = git.args(["index-pack", "--stdin"]).run_fed(pack).await?;
    if said.done() { Ok(()) } else { Err(Refused::BrokenOff { words: said.words() }.into()) }
}
