//! Compares the work tree, the index and commits.

use std::{ffi::OsString, path::PathBuf};

use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{Diff, DiffFile, GitDiff, MAX_DIFF_BYTES},
};
use tokio::task::spawn_blocking;

use super::{
    GitError,
    program::{Git, GitOutput},
    raw_diff::{RawDiff, parse_with_counts},
    repository::Repository,
};
use crate::{Error, Place, Run};

/// Limit of the list of changed files, in bytes.
const MAX_LIST_BYTES: usize = 8 << 20;

impl Run for GitDiff {
    async fn run(self, place: &Place) -> Result<Diff, Error> {
        let repository = Repository::find_to_read(place, self.path.as_ref()).await?;
        let states = revision_arguments(&self, &repository).await?;
        let parsed = compare(&self, &repository, &states, &[]).await?;
        if parsed.hides_deletion {
            return Ok(compare(&self, &repository, &states, &["--no-renames"]).await?.diff);
        }
        Ok(parsed.diff)
    }
}

/// The parsed output of `git diff`.
struct Parsed {
    diff: Diff,
    /// See [`RawDiff`].
    hides_deletion: bool,
}

/// Runs `git diff` with these additional options.
async fn compare(
    request: &GitDiff,
    repository: &Repository,
    states: &[String],
    options: &[&str],
) -> Result<Parsed, Error> {
    let index = index_that_cannot_be_locked(repository.git_dir.join("index")).await?;
    let git = git_diff(request, repository, states, options);
    let mut output = git.env("GIT_INDEX_FILE", index).run().await?;
    if !output.is_success() {
        // Git cuts its messages at 4,096 bytes, which that path fills.
        output = repository.run_checked(git_diff(request, repository, states, options)).await?;
    }
    parse_output(output).ok_or(GitError::UnexpectedOutput { command: "diff" }.into())
}

/// A `git diff` that prints list and patch in one run: most of the time is spent on examining the files.
fn git_diff(request: &GitDiff, repository: &Repository, states: &[String], options: &[&str]) -> Git {
    let context = format!("-U{}", request.context);
    let git = diff_command(repository.read_only_git()).args(["--raw", "--numstat", "-z", "-p", &context]);
    let git = git.args(options).args(states).args(["--"]).args(&request.file);
    git.max_output(MAX_LIST_BYTES + MAX_DIFF_BYTES)
}

/// A path of the index that is as long as the kernel allows. `git diff` ignores `GIT_OPTIONAL_LOCKS`: where files have only new
/// timestamps, it stores them in the index, and a writer that takes the lock of the index at that moment fails. The path of
/// the lock is the path of the index with a suffix. With this path it is longer than `PATH_MAX`, so git cannot create the lock and
/// leaves the index unchanged.
async fn index_that_cannot_be_locked(index: PathBuf) -> Result<OsString, Error> {
    const SAME_FOLDER: &str = "./";
    // Git creates the lock beside the file that a link leads to.
    let resolved = spawn_blocking(move || index.canonicalize().unwrap_or(index));
    let index = resolved.await.map_err(|_| Error::WorkerFailed)?;
    let folder = index.parent().unwrap_or(&index).join("").into_os_string();
    let name = index.file_name().unwrap_or_default();
    // `PATH_MAX` counts the NUL at the end.
    let unused = (libc::PATH_MAX as usize - 1).saturating_sub(folder.len() + name.len());
    let mut path = folder;
    path.push(SAME_FOLDER.repeat(unused / SAME_FOLDER.len()));
    path.push(name);
    Ok(path)
}

/// Splits git's output into the list of files and the patch, which an empty field separates.
fn parse_output(output: GitOutput) -> Option<Parsed> {
    let mut list = output.stdout;
    let end = list.windows(2).position(|pair| pair == b"\0\0");
    let mut patch = end.map_or_else(Vec::new, |end| list.split_off(end + 2));
    let mut truncated = output.truncated || patch.len() > MAX_DIFF_BYTES;
    patch.truncate(MAX_DIFF_BYTES);
    if end.is_some() {
        list.pop();
    }
    // A list that is cut may end anywhere.
    let cut = list.len() > MAX_LIST_BYTES || (output.truncated && end.is_none());
    if cut {
        truncated = true;
        list.truncate(MAX_LIST_BYTES);
    }
    let RawDiff { files, hides_deletion } =
        parse_with_counts(if cut { complete_entries(&list) } else { &list })?;
    drop(list);
    let diff = fit_answer(into_text(patch), files);
    Some(Parsed { diff: Diff { truncated: truncated || diff.truncated, ..diff }, hides_deletion })
}

/// The patch as text. Valid UTF-8 is not copied.
fn into_text(patch: Vec<u8>) -> String {
    String::from_utf8(patch).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Shortens list and patch to the limit of an answer. The list takes at most half of it.
fn fit_answer(mut diff: String, mut files: Vec<DiffFile>) -> Diff {
    let mut list = Budget::new(MAX_ANSWER_BYTES / 2);
    let fitting = files.iter().take_while(|file| list.try_add(*file)).count();
    files.truncate(fitting);
    let mut patch = Budget::new(MAX_ANSWER_BYTES / 2 + list.remaining());
    let shortened = patch.truncate_text(&mut diff);
    Diff { truncated: list.is_exhausted() || shortened, diff, files }
}

/// The compared revisions as arguments of git.
async fn revision_arguments(request: &GitDiff, repository: &Repository) -> Result<Vec<String>, Error> {
    let mut states = Vec::new();
    match (&request.from, &request.to) {
        (None, Some(_)) => {
            let reason = "stands without `from`; name the older state by `from`".to_owned();
            return Err(Error::InvalidValue { field: "to", reason });
        }
        (_, Some(_)) if request.staged => {
            let reason = "stands beside `to`; what is staged is the newer state itself".to_owned();
            return Err(Error::InvalidValue { field: "staged", reason });
        }
        (_, None) => {
            repository.work_tree()?;
        }
        _ => {}
    }
    if request.staged {
        states.extend(STAGED.map(str::to_owned));
    } else if request.from.is_none() {
        // The index has several versions of a file in conflict. By default, git prints a combined diff of all of them,
        // which cannot be applied and has no line counts.
        states.push("--ours".to_owned());
    }
    for (field, revision) in [("from", &request.from), ("to", &request.to)] {
        if let Some(revision) = revision {
            states.push(repository.resolve(field, revision, "tree").await?);
        }
    }
    Ok(states)
}

/// The options that compare the index with the last commit, without the files in conflict.
pub(super) const STAGED: [&str; 2] = ["--cached", "--diff-filter=u"];

/// A `git diff` that starts no program and does not enter submodules.
pub(super) fn diff_command(git: Git) -> Git {
    git.args([
        "diff",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=dirty",
        "--find-renames",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--no-relative",
        "--diff-algorithm=default",
    ])
}

/// The complete entries of a list that was cut, without line counts, which follow all entries.
pub(super) fn complete_entries(text: &[u8]) -> &[u8] {
    let end = text.windows(2).rposition(|pair| pair == b"\0:");
    end.map_or(&[], |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(out: &[u8], cut: bool) -> Option<Diff> {
        let stdout = out.to_vec();
        let output = GitOutput { code: Some(0), stdout, truncated: cut, stderr: String::new() };
        parse_output(output).map(|parsed| parsed.diff)
    }

    const ENTRY: &[u8] = b":100644 100644 1 2 M\0f\0";

    #[test]
    fn list_and_patch_are_separated_and_each_cut_to_its_limit() {
        let diff = parsed(&[ENTRY, b"1\t2\tf\0\0diff --git a/f b/f\n\0\0\n"].concat(), false).unwrap();
        assert_eq!((diff.files.len(), diff.diff.as_str()), (1, "diff --git a/f b/f\n\0\0\n"));
        assert_eq!((diff.files[0].deletions, diff.truncated), (2, false));
        assert_eq!(parsed(b"", false).unwrap().files, []);
        let long = [ENTRY, b"\0", &vec![b'x'; MAX_DIFF_BYTES + 1]].concat();
        let diff = parsed(&long, false).unwrap();
        assert_eq!((diff.files.len(), diff.truncated), (1, true));
        let json = serde_json::to_vec(&diff).unwrap().len();
        assert!(json <= MAX_ANSWER_BYTES && json > MAX_ANSWER_BYTES - 1_000, "{json}");
        let escaped = [ENTRY, b"\0", &vec![1; MAX_DIFF_BYTES]].concat();
        let diff = parsed(&escaped, false).unwrap();
        assert!(diff.truncated && serde_json::to_vec(&diff).unwrap().len() <= MAX_ANSWER_BYTES);
        let cut = parsed(&[ENTRY, ENTRY, b":100644 1006"].concat(), true).unwrap();
        assert_eq!((cut.files.len(), cut.truncated), (1, true));
        let many = parsed(&ENTRY.repeat(MAX_LIST_BYTES / ENTRY.len() + 2), false).unwrap();
        assert!(many.truncated);
    }

    proptest! {
        #[test]
        fn any_output_is_parsed_or_refused(text in "[\\x00:MAf0-9 \t]{0,60}", cut: bool) {
            let _ = parsed(text.as_bytes(), cut);
        }
    }
}
