//! Pushes a branch to a remote.

use skep_api::git::{GitPush, Pushed};

use super::{
    GitError,
    branch::check_branch_name,
    large_files,
    lock::write_lock,
    program::{Git, GitOutput},
    repository::Repository,
    upstream::Upstream,
};
use crate::{Error, Place, Run};

impl Run for GitPush {
    async fn run(self, place: &Place) -> Result<Pushed, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let branch = match &self.branch {
            Some(branch) => branch.clone(),
            None => repository.branch().await?.ok_or_else(branch_required)?,
        };
        check_branch_name(&repository, "branch", &branch).await?;
        let whole = format!("refs/heads/{branch}");
        let to = repository.resolve("branch", &whole, "commit").await;
        let to = to.map_err(|_| GitError::UnknownRevision { revision: branch.clone() })?;
        let remote = self.remote.as_deref();
        let upstream =
            Upstream::find(place, &repository, remote, Some(&branch), &place.context().reach, true).await?;
        let _lock = write_lock(&repository.common_dir).await?;
        large_files::push(&repository, &upstream, &branch, &to).await?;
        let git = upstream.connected_git(&repository, "push", "receive-pack")?;
        let git = push_options(git);
        let lease = format!("--force-with-lease={whole}");
        let git = if self.force_with_lease { git.args([&lease]) } else { git };
        let output = git.args(["--", &upstream.name, &format!("{whole}:{whole}")]).run().await?;
        let (from, created) =
            push_outcome(&repository, &output, &branch, &to, || upstream.remote_error(&output)).await?;
        if self.set_upstream {
            set_upstream(&repository, &upstream.name, &branch).await?;
        }
        Ok(Pushed { remote: upstream.name, branch, from, to, created })
    }
}

/// Makes a branch follow the one of the same name at a remote, as `git push --set-upstream` does.
async fn set_upstream(repository: &Repository, remote: &str, branch: &str) -> Result<(), Error> {
    for (name, value) in [("remote", remote.to_owned()), ("merge", format!("refs/heads/{branch}"))] {
        let key = format!("branch.{branch}.{name}");
        let git = repository.git().args(["config", "--local", "--replace-all", &key, &value]);
        repository.run_checked(git).await?;
    }
    Ok(())
}

/// A push without hooks and other references, with output for programs.
pub(super) fn push_options(git: Git) -> Git {
    git.args(["--porcelain", "--no-verify", "--no-signed", "--recurse-submodules=no", "--no-follow-tags"])
}

/// The previous commit of the branch at the remote, and whether the branch is new there.
///
/// # Errors
/// [`GitError::PushRejected`], and the error of `failed`.
pub(super) async fn push_outcome(
    repository: &Repository,
    output: &GitOutput,
    branch: &str,
    to: &str,
    failed: impl Fn() -> GitError,
) -> Result<(Option<String>, bool), Error> {
    let Some(line) = find_status(&output.stdout, &format!("refs/heads/{branch}")) else {
        return Err(failed().into());
    };
    if line.flag == '!' {
        return Err(
            GitError::PushRejected { message: rejection_message(&line.summary, &output.stderr) }.into()
        );
    }
    if !output.is_success() {
        return Err(failed().into());
    }
    let created = line.flag == '*';
    let from = match line.summary.split("..").next() {
        _ if created => None,
        _ if line.flag == '=' => Some(to.to_owned()),
        Some(short) => repository.resolve("branch", short, "commit").await.ok(),
        None => None,
    };
    Ok((from, created))
}

pub(super) fn branch_required() -> Error {
    let reason = "is missing, and no branch is checked out; name one".to_owned();
    Error::InvalidValue { field: "branch", reason }
}

#[derive(Debug, PartialEq, Eq)]
struct RefStatus {
    flag: char,
    summary: String,
}

/// Finds the line of this branch (git-push(1), `--porcelain`): flag, references, summary, separated by tabs.
fn find_status(text: &[u8], whole: &str) -> Option<RefStatus> {
    let text = String::from_utf8_lossy(text);
    text.lines().find_map(|line| {
        let mut columns = line.splitn(3, '\t');
        let (flag, refs, summary) = (columns.next()?, columns.next()?, columns.next()?);
        let named = refs.split_once(':').is_some_and(|(_, there)| there == whole);
        let flag = flag.chars().next().unwrap_or(' ');
        named.then(|| RefStatus { flag, summary: summary.to_owned() })
    })
}

/// Git's summary, followed by the messages of the remote.
fn rejection_message(summary: &str, stderr: &str) -> String {
    let lines = stderr.lines().filter_map(|line| line.strip_prefix("remote:")).map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let text = if lines.is_empty() { summary.to_owned() } else { format!("{summary}: {}", lines.join("; ")) };
    text.chars().take(4_000).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_line_of_the_branch_is_read() {
        let text = b"To /srv/x\n*\trefs/heads/a:refs/heads/a\t[new branch]\n!\trefs/heads/b:refs/heads/b\t[rejected] (fetch first)\nDone\n";
        assert_eq!(
            find_status(text, "refs/heads/a"),
            Some(RefStatus { flag: '*', summary: "[new branch]".to_owned() })
        );
        assert_eq!(find_status(text, "refs/heads/b").unwrap().flag, '!');
        assert_eq!(find_status(text, "refs/heads/c"), None);
        let output = rejection_message(
            "[remote rejected] (no)",
            "remote: not on\nremote: \nremote: a Friday\nerror: failed",
        );
        assert_eq!(output, "[remote rejected] (no): not on; a Friday");
    }

    proptest! {
        #[test]
        fn any_output_is_parsed(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = find_status(&text, "refs/heads/a");
        }
    }
}
