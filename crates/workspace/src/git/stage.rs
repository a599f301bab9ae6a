//! Adds files to the index.

use skep_api::{
    budget::{Budget, LONGEST_ANSWER},
    git::{GitAdd, Staged},
};

use super::{
    Refused,
    changes::read_changed,
    diff::{cut_at_zero, diff},
    lock::turn,
    repository::Repository,
};
use crate::{Error, Place, Run};

impl Run for GitAdd {
    async fn run(self, place: &Place) -> Result<Staged, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        let _turn = turn(&repository.common_dir).await?;
        let git = repository.git().args(["add", "--all"]);
        let git = match &self.files {
            None => Some(git.args(["--", "."])),
            // An empty list would mean all files to git.
            Some(files) if files.is_empty() => None,
            Some(files) => {
                check(files)?;
                let git = git.args(["--pathspec-from-file=-", "--pathspec-file-nul"]);
                Some(git.stdin(files.join("\0")))
            }
        };
        if let Some(git) = git {
            repository.done(git).await?;
        }
        staged(&repository).await
    }
}

fn check(files: &[String]) -> Result<(), Error> {
    match files.iter().find(|file| file.is_empty() || file.contains('\0')) {
        None => Ok(()),
        Some(file) => {
            let reason = format!("holds {file:?}, which is no name of a file");
            Err(Error::InvalidValue { field: "files", reason })
        }
    }
}

async fn staged(repository: &Repository) -> Result<Staged, Error> {
    let git = diff(repository.reading().at_most(LONGEST_ANSWER)).args(["--cached", "--raw", "-z"]);
    let said = repository.done(git).await?;
    let text = if said.cut { cut_at_zero(&said.out) } else { &said.out };
    let mut staged = read_changed(text).ok_or(Refused::Unreadable { command: "add" })?;
    let truncated = Budget::default().shorten(&mut staged) || said.cut;
    Ok(Staged { staged, truncated })
}
