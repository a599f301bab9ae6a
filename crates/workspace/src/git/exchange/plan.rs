//! Plans an exchange in the VM: which remote, which branch, which known commits.

use skep_api::git::{ExchangePlan, GitExchange};

use super::boundary;
use crate::{
    Error, Place, Run,
    git::{
        GitError,
        branch::check_branch_name,
        pull::tracked_branch,
        push::branch_required,
        remote::Remote,
        repository::{Repository, is_hash},
        upstream::configured_remote,
    },
};

/// Limit of known commits in a plan.
const MAX_KNOWN: &str = "--count=256";

impl Run for GitExchange {
    async fn run(self, place: &Place) -> Result<ExchangePlan, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let boundary = boundary::load(&repository).await?;
        let current = repository.branch().await?;
        let branch = match &self.branch {
            Some(branch) => branch.clone(),
            None if self.pushes => current.clone().ok_or_else(branch_required)?,
            None => tracked_branch(&repository, current.as_deref())?,
        };
        check_branch_name(&repository, "branch", &branch).await?;
        let of = if self.pushes { Some(branch.as_str()) } else { current.as_deref() };
        let (remote, url) = configured_remote(&repository, self.remote.as_deref(), of, self.pushes)?;
        let is_local = matches!(Remote::parse(&url)?, Remote::Local(_));
        let commit = if self.pushes {
            let at = repository.resolve("branch", &format!("refs/heads/{branch}"), "commit").await;
            Some(at.map_err(|_| GitError::UnknownRevision { revision: branch.clone() })?)
        } else {
            None
        };
        let seen = format!("refs/remotes/{remote}/{branch}");
        let last_seen = repository.resolve("branch", &seen, "commit").await.ok();
        let git = repository.read_only_git().args(["for-each-ref", "--format=%(objectname)", MAX_KNOWN]);
        let output = repository.run_checked(git.args(["refs/heads", "refs/remotes"])).await?;
        let has = output.stdout_text().lines().filter(|line| is_hash(line)).map(str::to_owned).collect();
        Ok(ExchangePlan { remote, url, is_local, branch, commit, last_seen, has, boundary })
    }
}
