//! Integrates fetched commits into the repository in the VM.

use futures_util::{StreamExt, stream};
use skep_api::git::{GitJoin, Pulled};

use super::{check_hash, send::index_pack};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{GitError, branch::check_branch_name, lock::write_lock, pull::integrate, repository::Repository},
    streamed::no_content,
};

impl RunStreamed for GitJoin {
    async fn run_streamed(self, mut content: Content, place: &Place) -> Result<(Pulled, Content), Error> {
        check_hash(&self.commit)?;
        let repository = Repository::find(place, self.path.as_ref()).await?.with_submodules(place).await?;
        repository.work_tree()?;
        let seen = format!("{}/{}", self.remote, self.branch);
        check_branch_name(&repository, "branch", &seen).await?;
        let _lock = write_lock(&repository.common_dir).await?;
        // Without new commits the content has no bytes, possibly in several empty pieces.
        let first = loop {
            match content.next().await {
                Some(Ok(piece)) if piece.is_empty() => {}
                first => break first,
            }
        };
        if let Some(first) = first {
            let pack = stream::once(std::future::ready(first)).chain(content);
            index_pack(&repository, Box::pin(pack)).await?;
        }
        let whole = ["rev-list", "--objects", "--quiet", &self.commit, "--not", "--all", "--"];
        let output = repository.read_only_git().args(whole).run().await?;
        if !output.is_success() {
            return Err(GitError::IncompleteTransfer { message: output.message() }.into());
        }
        let update = ["update-ref", "--", &format!("refs/remotes/{seen}"), &self.commit];
        repository.run_checked(repository.git().args(update)).await?;
        let pulled = integrate(&repository, &self.commit, self.strategy, &self.committer, None).await?;
        Ok((pulled, no_content()))
    }
}
