//! Packs commits in the VM, and records the result of a push.

use skep_api::git::{EmptyAnswer, GitNotePush, GitPack, NETWORK_LIMIT};

use super::check_hash;
use crate::{
    Content, Error, Place, Run, RunStreamed,
    git::{branch::check_branch_name, lock::write_lock, repository::Repository},
};

impl RunStreamed for GitPack {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(EmptyAnswer, Content), Error> {
        check_hash(&self.commit)?;
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let wanted = format!("{}\n", self.commit);
        Ok((EmptyAnswer {}, pack_revisions(&repository, wanted)?))
    }
}

/// Packs these revisions, one per line, without those that are prefixed by `^`.
pub(super) fn pack_revisions(repository: &Repository, wanted: String) -> Result<Content, Error> {
    let git = repository.read_only_git().timeout(NETWORK_LIMIT).stdin(wanted);
    git.args(["pack-objects", "--revs", "--stdout", "--quiet", "--delta-base-offset"]).stream()
}

impl Run for GitNotePush {
    async fn run(self, place: &Place) -> Result<EmptyAnswer, Error> {
        check_hash(&self.commit)?;
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let seen = format!("{}/{}", self.remote, self.branch);
        check_branch_name(&repository, "branch", &seen).await?;
        let _lock = write_lock(&repository.common_dir).await?;
        let update = ["update-ref", "--", &format!("refs/remotes/{seen}"), &self.commit];
        repository.run_checked(repository.git().args(update)).await?;
        if self.set_upstream {
            let follow = ["branch", "--quiet", &format!("--set-upstream-to={seen}"), "--", &self.branch];
            repository.run_checked(repository.git().args(follow)).await?;
        }
        Ok(EmptyAnswer {})
    }
}
