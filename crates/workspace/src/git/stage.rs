//! Staging.

use skep_api::git::{ChangedPath, GitAdd, Staged};

use super::{Refused, changes::read_changed, diff::diff, lock::turn, repository::Repository};
use crate::{Error, Place, Run};

impl Run for GitAdd {
    async fn run(self, place: &Place) -> Result<Staged, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        let _turn = turn(&repository.common_dir).await?;
        let git = repository.git().args(["add", "--all"]);
        let git = match &self.files {
            None => Some(git.args(["--", "."])),
            // Git takes an empty list for all files.
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
        Ok(Staged { staged: staged(&repository).await? })
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

async fn staged(repository: &Repository) -> Result<Vec<ChangedPath>, Error> {
    let said = repository.done(diff(repository.reading()).args(["--cached", "--raw", "-z"])).await?;
    if said.cut {
        return Err(Refused::TooMuch { command: "add" }.into());
    }
    Ok(read_changed(&said.out).ok_or(Refused::Unreadable { command: "add" })?)
}
