//! Checks out commits and branches, and resets the current branch.

use skep_api::git::{CheckedOut, GitCheckout, GitReset, ResetDone, ResetMode};

use super::{
    GitError,
    branch::check_branch_name,
    large_files,
    lock::write_lock,
    program::Git,
    repository::{Repository, check_revision},
};
use crate::{Error, Place, Run};

impl Run for GitCheckout {
    async fn run(self, place: &Place) -> Result<CheckedOut, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        check_revision("ref", &self.revision)?;
        let _turn = write_lock(&repository.common_dir).await?;
        let git = repository.git().args(["checkout", "--quiet", "--no-recurse-submodules"]);
        if self.create {
            check_branch_name(&repository, "ref", &self.revision).await?;
            check_out(git.args(["--no-track", "-b", &self.revision, "--"]), &self.revision).await?;
        } else {
            let checkout = check_out(git.args(["--guess", &self.revision, "--"]), &self.revision);
            large_files::check_out(&repository, &self.revision, &place.context().reach, checkout).await?;
        }
        let (branch, head) = tokio::try_join!(repository.branch_now(), repository.head())?;
        Ok(CheckedOut { detached: branch.is_none(), branch, head })
    }
}

/// Runs a git that checks out this revision.
async fn check_out(git: Git, revision: &str) -> Result<(), Error> {
    let output = git.run().await?;
    if output.is_success() {
        return Ok(());
    }
    let message = output.message();
    let unknown = ["invalid reference", "unknown revision", "not a commit", "did not match", "bad revision"];
    if unknown.iter().any(|text| message.contains(text)) {
        return Err(GitError::UnknownRevision { revision: revision.to_owned() }.into());
    }
    Err(GitError::from_message(message).into())
}

impl Run for GitReset {
    async fn run(self, place: &Place) -> Result<ResetDone, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        let head = repository.resolve("to", self.to.as_deref().unwrap_or("HEAD"), "commit").await?;
        let _turn = write_lock(&repository.common_dir).await?;
        let mode = match self.mode {
            ResetMode::Soft => "--soft",
            ResetMode::Mixed => "--mixed",
            ResetMode::Hard => "--hard",
        };
        let git = repository.git().args(["reset", "--quiet", "--no-recurse-submodules", mode, &head, "--"]);
        let reset = repository.run_checked(git);
        match self.mode {
            ResetMode::Soft | ResetMode::Mixed => reset.await?,
            ResetMode::Hard => {
                large_files::check_out(&repository, &head, &place.context().reach, reset).await?
            }
        };
        Ok(ResetDone { head })
    }
}
