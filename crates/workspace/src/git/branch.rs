//! Lists, creates and deletes branches.

use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{Branch, BranchChanged, Branches, GitBranches, GitChangeBranch},
};

use super::{
    GitError,
    lock::write_lock,
    raw_diff::parse_number,
    repository::{Repository, check_revision},
};
use crate::{Error, Place, Run};

const FORMAT: &str =
    "--format=%(refname)%00%(objectname)%00%(upstream:short)%00%(upstream:track,nobracket)%00%(symref)";

impl Run for GitBranches {
    async fn run(self, place: &Place) -> Result<Branches, Error> {
        let repository = Repository::find_to_read(place, self.path.as_ref()).await?;
        let git = repository.read_only_git().max_output(MAX_ANSWER_BYTES).args([
            "for-each-ref",
            FORMAT,
            "refs/heads/",
        ]);
        let git = if self.remote { git.args(["refs/remotes/"]) } else { git };
        let (output, current) = tokio::try_join!(repository.run_checked(git), repository.branch())?;
        let whole =
            if output.truncated { output.stdout.iter().rposition(|byte| *byte == b'\n') } else { None };
        let text = &output.stdout[..whole.unwrap_or(output.stdout.len())];
        let mut budget = Budget::default();
        let branches =
            parse_branches(text, &mut budget).ok_or(GitError::UnexpectedOutput { command: "branch" })?;
        let truncated = output.truncated || budget.is_exhausted();
        Ok(Branches { detached: current.is_none(), current, branches, truncated })
    }
}

/// Parses one line per branch: branch names contain neither zero bytes nor newlines.
fn parse_branches(text: &[u8], budget: &mut Budget) -> Option<Vec<Branch>> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut branches = Vec::new();
    for line in lines {
        let Some(branch) = parse_branch(line)? else { continue };
        if !budget.try_add(&branch) {
            break;
        }
        branches.push(branch);
    }
    Some(branches)
}

fn parse_branch(line: &[u8]) -> Option<Option<Branch>> {
    let fields: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let [name, commit, upstream, track, symbolic] = fields.as_slice() else { return None };
    // `origin/HEAD` is an alias of another listed branch.
    if !symbolic.is_empty() {
        return Some(None);
    }
    let (name, remote) = match name.strip_prefix("refs/heads/") {
        Some(name) => (name, false),
        None => (name.strip_prefix("refs/remotes/")?, true),
    };
    let follows = !upstream.is_empty() && track != "gone";
    let count = |word: &str| {
        let counted = track.split(", ").find_map(|part| part.strip_prefix(word)?.strip_prefix(' '));
        follows.then(|| counted.and_then(|digits| parse_number(digits.as_bytes())).unwrap_or(0))
    };
    Some(Some(Branch {
        name: name.to_owned(),
        commit: commit.to_string(),
        upstream: Some(upstream.to_string()).filter(|upstream| !upstream.is_empty()),
        ahead: count("ahead"),
        behind: count("behind"),
        remote,
    }))
}

impl Run for GitChangeBranch {
    async fn run(self, place: &Place) -> Result<BranchChanged, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?;
        check_branch_name(&repository, "name", &self.name).await?;
        let _lock = write_lock(&repository.common_dir).await?;
        let whole = format!("refs/heads/{}", self.name);
        if self.delete {
            let commit = repository.resolve("name", &whole, "commit").await;
            let commit = commit.map_err(|_| GitError::UnknownRevision { revision: self.name.clone() })?;
            let how = if self.force { "-D" } else { "-d" };
            repository
                .run_checked(repository.git().args(["branch", "--quiet", how, "--", &self.name]))
                .await?;
            return Ok(BranchChanged { name: self.name, commit, deleted: true });
        }
        let from = self.from.as_deref().unwrap_or("HEAD");
        let commit = repository.resolve("from", from, "commit").await?;
        let git = repository.git().args(["branch", "--quiet", "--no-track", "--", &self.name, &commit]);
        repository.run_checked(git).await?;
        Ok(BranchChanged { name: self.name, commit, deleted: false })
    }
}

/// Refuses names that git does not allow for branches.
pub(super) async fn check_branch_name(
    repository: &Repository,
    field: &'static str,
    name: &str,
) -> Result<(), Error> {
    check_revision(field, name)?;
    let whole = format!("refs/heads/{name}");
    if name != "HEAD"
        && repository.read_only_git().args(["check-ref-format", &whole]).run().await?.is_success()
    {
        return Ok(());
    }
    let reason = format!("is `{name}`, which is no valid name of a branch (git-check-ref-format(1))");
    Err(Error::InvalidValue { field, reason })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_are_read_and_other_names_passed_over() {
        let text = b"refs/heads/a\0c1\0origin/a\0ahead 1, behind 2\0\nrefs/remotes/origin/HEAD\0c1\0\0\0refs/remotes/origin/a\n\
            refs/heads/b\0c1\0origin/b\0gone\0\nrefs/heads/c\0c1\0origin/c\0\0\nrefs/remotes/origin/a\0c2\0\0\0\n";
        let branches = parse_branches(text, &mut Budget::default()).unwrap();
        let counts: Vec<_> =
            branches.iter().map(|one| (one.name.as_str(), one.ahead, one.behind, one.remote)).collect();
        assert_eq!(
            counts,
            [
                ("a", Some(1), Some(2), false),
                ("b", None, None, false),
                ("c", Some(0), Some(0), false),
                ("origin/a", None, None, true)
            ]
        );
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let line = b"refs/heads/a\0c1\0\0\0\n";
        let mut budget = Budget::new(10_000);
        let few = parse_branches(&line.repeat(1_000), &mut budget).unwrap().len();
        assert!((10..100).contains(&few) && budget.is_exhausted(), "{few}");
    }

    proptest! {
        #[test]
        fn any_output_is_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_branches(&text, &mut Budget::default());
        }
    }
}
