//! Plans an exchange in the VM: which remote, which branch, which known commits.

use skep_api::git::{ExchangePlan, GitExchange};

use super::boundary;
use crate::{
    Error, Place, Run,
    git::{
        Refused,
        branch::check_name,
        pull::followed,
        push::no_branch,
        remote::Remote,
        repository::{Repository, is_hash},
        upstream::configured,
    },
};

/// Limit of known commits in a plan.
const MOST_KNOWN: &str = "--count=256";

impl Run for GitExchange {
    async fn run(self, place: &Place) -> Result<ExchangePlan, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let boundary = boundary::told(&repository).await?;
        let current = repository.branch().await?;
        let branch = match &self.branch {
            Some(branch) => branch.clone(),
            None if self.pushes => current.clone().ok_or_else(no_branch)?,
            None => followed(&repository, current.as_deref())?,
        };
        check_name(&repository, "branch", &branch).await?;
        let of = if self.pushes { Some(branch.as_str()) } else { current.as_deref() };
        let (remote, url) = configured(&repository, self.remote.as_deref(), of, self.pushes)?;
        let is_local = matches!(Remote::parse(&url)?, Remote::Local(_));
        let commit = if self.pushes {
            let at = repository.resolve("branch", &format!("refs/heads/{branch}"), "commit").await;
            Some(at.map_err(|_| Refused::UnknownRevision { revision: branch.clone() })?)
        } else {
            None
        };
        let seen = format!("refs/remotes/{remote}/{branch}");
        let last_seen = repository.resolve("branch", &seen, "commit").await.ok();
        let git = repository.reading().args(["for-each-ref", "--format=%(objectname)", MOST_KNOWN]);
        let said = repository.done(git.args(["refs/heads", "refs/remotes"])).await?;
        let has = said.line().lines().filter(|line| is_hash(line)).map(str::to_owned).collect();
        Ok(ExchangePlan { remote, url, is_local, branch, commit, last_seen, has, boundary })
    }
}
