//! Packs commits in the VM, and records the result of a push.

use skep_api::git::{GitNotePush, GitPack, NETWORK_LIMIT, Noted};

use super::check_hash;
use crate::{
    Content, Error, Place, Run, RunStreamed,
    git::{branch::check_name, lock::turn, repository::Repository},
};

impl RunStreamed for GitPack {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(Noted, Content), Error> {
        check_hash(&self.commit)?;
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let wanted = format!("{}\n", self.commit);
        Ok((Noted {}, packed(&repository, wanted)?))
    }
}

/// Packs these revisions, one per line, without those that are prefixed by `^`.
pub(super) fn packed(repository: &Repository, wanted: String) -> Result<Content, Error> {
    let git = repository.reading().within(NETWORK_LIMIT).stdin(wanted);
    git.args(["pack-objects", "--revs", "--stdout", "--quiet", "--delta-base-offset"]).pour()
}

impl Run for GitNotePush {
    async fn run(self, place: &Place) -> Result<Noted, Error> {
        check_hash(&self.commit)?;
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let seen = format!("{}/{}", self.remote, self.branch);
        check_name(&repository, "branch", &seen).await?;
        let _turn = turn(&repository.common_dir).await?;
        let update = ["update-ref", "--", &format!("refs/remotes/{seen}"), &self.commit];
        repository.done(repository.git().args(update)).await?;
        if self.set_upstream {
            let follow = ["branch", "--quiet", &format!("--set-upstream-to={seen}"), "--", &self.branch];
            repository.done(repository.git().args(follow)).await?;
        }
        Ok(Noted {})
    }
}
