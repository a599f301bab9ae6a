//! Putting changes away.

use skep_api::git::{GitStash, Stash, StashAction, Stashes};

use super::{Refused, commit::as_person, lock::turn, repository::Repository};
use crate::{Error, Place, Run};

impl Run for GitStash {
    async fn run(self, place: &Place) -> Result<Stashes, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        if self.message.as_ref().is_some_and(|message| message.contains('\0')) {
            let reason = "holds a zero byte".to_owned();
            return Err(Error::InvalidValue { field: "message", reason });
        }
        let _turn = turn(&repository.common_dir).await?;
        let before = list(&repository).await?;
        let verb = match self.action {
            StashAction::List => return Ok(Stashes { stashes: before }),
            StashAction::Push => "push",
            StashAction::Pop => "pop",
            StashAction::Apply => "apply",
            StashAction::Drop => "drop",
        };
        let nothing = || Refused::NothingStashed { path: self.path.as_path().display().to_string() };
        if self.action != StashAction::Push && before.is_empty() {
            return Err(nothing().into());
        }
        // It names the files that it takes away by a pattern of its own, which it must not take for a name.
        let git = repository.git().env("GIT_LITERAL_PATHSPECS", "0");
        let git = as_person(git, &self.committer, &self.committer).args(["stash", verb, "--quiet"]);
        let git = match (&self.message, self.action) {
            (message, StashAction::Push) => {
                let message = message.as_ref().map(|message| format!("--message={message}"));
                git.args(["--include-untracked"]).args(message)
            }
            _ => git,
        };
        let said = git.run().await?;
        if !said.done() {
            return Err(Refused::by_words(said.words()).into());
        }
        let stashes = list(&repository).await?;
        if self.action == StashAction::Push && stashes.len() == before.len() {
            return Err(nothing().into());
        }
        Ok(Stashes { stashes })
    }
}

async fn list(repository: &Repository) -> Result<Vec<Stash>, Error> {
    let git = repository.reading().args(["stash", "list", "-z", "--format=%gd%x00%H%x00%gs"]);
    let said = repository.done(git).await?;
    let text = String::from_utf8_lossy(&said.out);
    let fields: Vec<&str> = text.split_terminator('\0').collect();
    Ok(fields
        .chunks_exact(3)
        .map(|fields| Stash {
            name: fields[0].to_owned(),
            commit: fields[1].to_owned(),
            message: fields[2].to_owned(),
        })
        .collect())
}
