//! Lists, creates, applies and drops stashes.

use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{GitStash, Stash, StashAction, Stashes},
};

use super::{GitError, commit::with_identities, lock::write_lock, repository::Repository};
use crate::{Error, Place, Run};

impl Run for GitStash {
    async fn run(self, place: &Place) -> Result<Stashes, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        if self.message.as_ref().is_some_and(|message| message.contains('\0')) {
            let reason = "holds a zero byte".to_owned();
            return Err(Error::InvalidValue { field: "message", reason });
        }
        let _lock = write_lock(&repository.common_dir).await?;
        let before = list(&repository).await?;
        let verb = match self.action {
            StashAction::List => return Ok(before),
            StashAction::Push => "push",
            StashAction::Pop => "pop",
            StashAction::Apply => "apply",
            StashAction::Drop => "drop",
        };
        let nothing = || GitError::NothingStashed { path: self.path.as_path().display().to_string() };
        if self.action != StashAction::Push && before.stashes.is_empty() {
            return Err(nothing().into());
        }
        // `git stash` passes a pattern of its own to other gits, which must not be taken literally.
        let git = repository.git().env("GIT_LITERAL_PATHSPECS", "0");
        let git = with_identities(git, &place.context().committer, &place.context().committer)
            .args(["stash", verb, "--quiet"]);
        let git = match (&self.message, self.action) {
            (message, StashAction::Push) => {
                let message = message.as_ref().map(|message| format!("--message={message}"));
                git.args(["--include-untracked"]).args(message)
            }
            _ => git,
        };
        let output = git.run().await?;
        if !output.is_success() {
            return Err(GitError::from_message(output.message()).into());
        }
        let after = list(&repository).await?;
        // Compares the lists instead of their lengths: the newest stash comes first, and a list that is cut may keep
        // its length.
        if self.action == StashAction::Push && after == before {
            return Err(nothing().into());
        }
        Ok(after)
    }
}

async fn list(repository: &Repository) -> Result<Stashes, Error> {
    let git = repository.read_only_git().max_output(MAX_ANSWER_BYTES).args([
        "stash",
        "list",
        "-z",
        "--format=%gd%x00%H%x00%gs",
    ]);
    let output = repository.run_checked(git).await?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<&str> = text.split_terminator('\0').collect();
    // Output that is cut may end anywhere.
    let whole = fields.len().saturating_sub(usize::from(output.truncated));
    let mut budget = Budget::default();
    let stashes = fields[..whole].chunks_exact(3).map_while(|fields| {
        let [name, commit, message] = [0, 1, 2].map(|at| fields[at].to_owned());
        budget.take_if_fits(Stash { name, commit, message })
    });
    let stashes = stashes.collect();
    Ok(Stashes { stashes, truncated: output.truncated || budget.is_exhausted() })
}
