//! Pushes the commit of a pack to a remote: from the server, or in the workspace of the remote.

use std::path::PathBuf;

use skep_api::{
    AbsolutePath,
    git::{GitSend, NETWORK_LIMIT, Sent},
    path::PathEncoding,
};

use super::{boundary, check_hash, parse_network_remote, temporary::TemporaryRepository};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{
        GitError,
        branch::check_branch_name,
        push::{push_options, push_outcome},
        remote::{LocalRemote, Remote, redacted},
        repository::Repository,
    },
    streamed::no_content,
};

impl RunStreamed for GitSend {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(Sent, Content), Error> {
        check_hash(&self.commit)?;
        boundary::check(&self.boundary)?;
        let target = PushTarget::find(&self, place).await?;
        let temporary = TemporaryRepository::create(place).await?;
        let repository = &temporary.repository;
        check_branch_name(repository, "branch", &self.branch).await?;
        // Refuses the remote before anything is received for it.
        let transport = target.remote().connect(&self.url, &self.reach, &repository.overrides).await?;
        index_pack(repository, content).await?;
        temporary.set_boundary(&self.boundary).await?;
        let git =
            transport.git(|settings| Repository { overrides: settings.clone(), ..repository.clone() }.git());
        let whole = format!("refs/heads/{}", self.branch);
        // The expected commit of the remote branch; empty if it was never seen.
        let seen = self.last_seen.as_deref().unwrap_or_default();
        if !seen.is_empty() {
            check_hash(seen)?;
        }
        let lease = self.force_with_lease.then(|| format!("--force-with-lease={whole}:{seen}"));
        let git = push_options(git.args(["push"])).args(lease);
        let change = format!("{}:{whole}", self.commit);
        let output = match &target {
            PushTarget::Local(local_remote) => {
                let connection =
                    local_remote.connect("receive-pack").map_err(|source| Error::NotStarted { source })?;
                let git = git.args(["--", &connection.url(), &change]);
                connection.attach_to(git).run().await?
            }
            PushTarget::Network(_) => git.args(["--", &self.url, &change]).run().await?,
        };
        let (from, created) =
            push_outcome(repository, &output, &self.branch, &self.commit, || transport.remote_error(&output))
                .await?;
        Ok((Sent { from: from.or(self.last_seen.filter(|_| !created)), created }, no_content()))
    }
}

/// The remote to push to.
enum PushTarget {
    /// A repository in this workspace.
    Local(Box<LocalRemote>),
    /// A remote in the network.
    Network(Remote),
}

impl PushTarget {
    async fn find(send: &GitSend, place: &Place) -> Result<Self, Error> {
        if !send.here {
            return Ok(Self::Network(parse_network_remote(&send.url)?));
        }
        let path = AbsolutePath::parse("url", &send.url, PathEncoding::Percent);
        let path = path.map_err(|_| GitError::UnknownRemote { remote: redacted(&send.url) })?;
        Ok(Self::Local(Box::new(LocalRemote::find(place, path.as_path()).await?)))
    }

    fn remote(&self) -> Remote {
        match self {
            // The path does not matter: connections to local remotes need no network.
            Self::Local(_) => Remote::Local(PathBuf::new()),
            Self::Network(remote) => remote.clone(),
        }
    }
}

/// Stores a pack in a repository.
///
/// # Errors
/// An incomplete or invalid pack.
pub(super) async fn index_pack(repository: &Repository, pack: Content) -> Result<(), Error> {
    let git = repository.git().timeout(NETWORK_LIMIT).stdin(Vec::new());
    let output = git.args(["index-pack", "--stdin"]).run_with_input(pack).await?;
    if output.is_success() {
        Ok(())
    } else {
        Err(GitError::IncompleteTransfer { message: output.message() }.into())
    }
}
