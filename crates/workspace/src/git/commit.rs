//! Creates commits.

use skep_api::git::{Committed, GitCommit, Person};

use super::{
    GitError, diff::diff_command, lock::write_lock, program::Git, raw_diff::parse_with_counts,
    repository::Repository,
};
use crate::{Error, Place, Run};

impl Run for GitCommit {
    async fn run(self, place: &Place) -> Result<Committed, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        repository.work_tree()?;
        if self.message.trim().is_empty() || self.message.contains('\0') {
            let reason = "is empty, or holds a zero byte; say what the commit is for".to_owned();
            return Err(Error::InvalidValue { field: "message", reason });
        }
        let _lock = write_lock(&repository.common_dir).await?;
        let author = self.author.as_ref().unwrap_or(&place.context().committer);
        check_person("author", author)?;
        let git = with_identities(repository.git(), &place.context().committer, author);
        let git = git.args(["commit", "--no-verify", "--no-gpg-sign", "--no-edit", "--no-status"]);
        let switches = [(self.all, "--all"), (self.amend, "--amend"), (self.allow_empty, "--allow-empty")];
        let git = git.args(switches.into_iter().filter_map(|(set, name)| set.then_some(name)));
        let git = if self.amend && self.author.is_some() { git.args(["--reset-author"]) } else { git };
        let output = git.args(["--file=-"]).stdin(self.message.clone()).run().await?;
        if !output.is_success() {
            return Err(commit_error(&self, output.message()).into());
        }
        describe_head(&repository).await
    }
}

fn commit_error(request: &GitCommit, message: String) -> GitError {
    let nothing = [
        "nothing to commit",
        "nothing added to commit",
        "no changes added to commit",
        "would make\nit empty",
    ];
    if nothing.iter().any(|text| message.contains(text)) {
        return GitError::NothingToCommit { path: request.path.as_path().display().to_string() };
    }
    if message.contains("unmerged files") {
        return GitError::Conflict { message };
    }
    GitError::from_message(message)
}

async fn describe_head(repository: &Repository) -> Result<Committed, Error> {
    let unreadable = || GitError::UnexpectedOutput { command: "commit" };
    let head = repository.head().await?.ok_or_else(unreadable)?;
    let subject = ["log", "-n1", "--no-mailmap", "--no-show-signature", "--format=%s", &head];
    let parent = format!("{head}^");
    let has_parent = repository.resolve("commit", &parent, "tree").await.ok();
    let before = has_parent.as_deref().unwrap_or(empty_tree(&head));
    let changes = diff_command(repository.read_only_git()).args(["--raw", "--numstat", "-z", before, &head]);
    let (subject, changes, branch) = tokio::try_join!(
        repository.run_checked(repository.read_only_git().args(subject)),
        repository.run_checked(changes),
        repository.branch()
    )?;
    let files = parse_with_counts(&changes.stdout).ok_or_else(unreadable)?.files;
    Ok(Committed {
        subject: subject.stdout_text(),
        commit: head,
        branch,
        files_changed: files.len() as u64,
        additions: files.iter().map(|file| file.additions).sum(),
        deletions: files.iter().map(|file| file.deletions).sum(),
    })
}

/// The hash of the empty tree, in a repository with hashes of this length.
pub(super) fn empty_tree(hash: &str) -> &'static str {
    if hash.len() == 64 {
        "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
    } else {
        "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    }
}

/// A git that commits with these identities.
pub(super) fn with_identities(git: Git, committer: &Person, author: &Person) -> Git {
    git.env("GIT_COMMITTER_NAME", &committer.name)
        .env("GIT_COMMITTER_EMAIL", &committer.email)
        .env("GIT_AUTHOR_NAME", &author.name)
        .env("GIT_AUTHOR_EMAIL", &author.email)
}

/// Refuses names that are empty after git has removed the characters that it does not allow at their ends.
fn check_person(field: &'static str, person: &Person) -> Result<(), Error> {
    let crud = |character: char| character <= ' ' || ".,:;<>\"\\'".contains(character);
    let wrong =
        |text: &str| text.contains(['\0', '\n', '<', '>']) || text.chars().all(crud) || text.len() > 1_000;
    if wrong(&person.name) || wrong(&person.email) {
        let reason =
            "has a name or an email that git rejects; use letters, and neither `<` nor `>`".to_owned();
        return Err(Error::InvalidValue { field, reason });
    }
    Ok(())
}
