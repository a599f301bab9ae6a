//! Merges a commit into the current branch.

use skep_api::git::{GitMerge, PullStrategy, Pulled};

use super::{GitError, large_files, lock::write_lock, pull::integrate, repository::Repository};
use crate::{Error, Place, Run};

impl Run for GitMerge {
    async fn run(self, place: &Place) -> Result<Pulled, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        let there = repository.resolve("ref", &self.revision, "commit").await?;
        let _lock = write_lock(&repository.common_dir).await?;
        let strategy = if self.ff_only { PullStrategy::FfOnly } else { PullStrategy::Merge };
        let message = match self.message {
            Some(message) if message.trim().is_empty() || message.contains('\0') => {
                let reason = "is empty, or holds a zero byte; leave it out, or say what is merged".to_owned();
                return Err(Error::InvalidValue { field: "message", reason });
            }
            Some(message) => message,
            None => {
                let branch = format!("refs/heads/{}", self.revision);
                let is_branch = repository.resolve("ref", &branch, "commit").await.is_ok();
                format!("Merge {} '{}'", if is_branch { "branch" } else { "commit" }, self.revision)
            }
        };
        let context = place.context();
        let merge = integrate(&repository, &there, strategy, &context.committer, Some(&message));
        match large_files::check_out(&repository, &there, &context.reach, merge).await {
            // The message for a pull would propose its strategies.
            Err(Error::Git(GitError::Conflict { .. })) if self.ff_only => {
                let message = "both sides have commits of their own; leave `ff_only` out".to_owned();
                Err(GitError::Conflict { message }.into())
            }
            other => other,
        }
    }
}
