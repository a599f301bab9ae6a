//! Adds files to the index.

use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{GitAdd, Staged},
};

use super::{
    GitError,
    diff::{STAGED, complete_entries, diff_command},
    lock::write_lock,
    raw_diff::parse_paths,
    repository::Repository,
};
use crate::{Error, Place, Run};

impl Run for GitAdd {
    async fn run(self, place: &Place) -> Result<Staged, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        let _lock = write_lock(&repository.common_dir).await?;
        let git = repository.git().args(["add", "--all"]);
        let git = match &self.files {
            None => Some(git.args(["--", "."])),
            // An empty list would mean all files to git.
            Some(files) if files.is_empty() => None,
            Some(files) => {
                check_names(files)?;
                let git = git.args(["--pathspec-from-file=-", "--pathspec-file-nul"]);
                Some(git.stdin(files.join("\0")))
            }
        };
        if let Some(git) = git {
            repository.run_checked(git).await?;
        }
        list_staged(&repository).await
    }
}

fn check_names(files: &[String]) -> Result<(), Error> {
    match files.iter().find(|file| file.is_empty() || file.contains('\0')) {
        None => Ok(()),
        Some(file) => {
            let reason = format!("holds {file:?}, which is no name of a file");
            Err(Error::InvalidValue { field: "files", reason })
        }
    }
}

async fn list_staged(repository: &Repository) -> Result<Staged, Error> {
    let git = diff_command(repository.read_only_git().max_output(MAX_ANSWER_BYTES)).args(STAGED);
    let git = git.args(["--raw", "-z"]);
    let output = repository.run_checked(git).await?;
    let text = if output.truncated { complete_entries(&output.stdout) } else { &output.stdout };
    let mut staged = parse_paths(text).ok_or(GitError::UnexpectedOutput { command: "add" })?;
    let truncated = Budget::default().truncate_page(&mut staged) || output.truncated;
    Ok(Staged { staged, truncated })
}
