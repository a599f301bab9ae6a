//! Compares the work tree, the index and commits.

use skep_api::{
    budget::{Budget, LONGEST_ANSWER},
    git::{Diff, DiffFile, GitDiff, LONGEST_DIFF},
};

use super::{
    Refused,
    changes::read,
    plain,
    program::{Git, Said},
    repository::Repository,
};
use crate::{Error, Place, Run};

/// Limit of the list of changed files, in bytes.
const LONGEST_LIST: usize = 8 << 20;

impl Run for GitDiff {
    async fn run_without_programs(&self, place: &Place) -> Option<Diff> {
        plain::diff(self, place).await
    }

    async fn run(self, place: &Place) -> Result<Diff, Error> {
        if let Some(diff) = plain::diff(&self, place).await {
            return Ok(diff);
        }
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let states = states(&self, &repository).await?;
        // List and patch in one run: most of the time is spent on examining the files.
        let context = format!("-U{}", self.context);
        let git = diff(repository.reading()).args(["--raw", "--numstat", "-z", "-p", &context]);
        let git = git.args(&states).args(["--"]).args(&self.file).at_most(LONGEST_LIST + LONGEST_DIFF);
        let said = repository.done(git).await?;
        told(said).ok_or(Refused::Unreadable { command: "diff" }.into())
    }
}

/// Splits git's output into the list of files and the patch, which an empty field separates.
fn told(said: Said) -> Option<Diff> {
    let mut list = said.out;
    let end = list.windows(2).position(|pair| pair == b"\0\0");
    let mut patch = end.map_or_else(Vec::new, |end| list.split_off(end + 2));
    let mut truncated = said.cut || patch.len() > LONGEST_DIFF;
    patch.truncate(LONGEST_DIFF);
    if end.is_some() {
        list.pop();
    }
    // A list that is cut may end anywhere.
    let cut = list.len() > LONGEST_LIST || (said.cut && end.is_none());
    if cut {
        truncated = true;
        list.truncate(LONGEST_LIST);
    }
    let files = read(if cut { cut_at_zero(&list) } else { &list })?;
    drop(list);
    let diff = fitting(text_of(patch), files);
    Some(Diff { truncated: truncated || diff.truncated, ..diff })
}

/// The patch as text. Valid UTF-8 is not copied.
pub(super) fn text_of(patch: Vec<u8>) -> String {
    String::from_utf8(patch).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Shortens list and patch to the limit of an answer. The list takes at most half of it.
pub(super) fn fitting(mut diff: String, mut files: Vec<DiffFile>) -> Diff {
    let mut list = Budget::of(LONGEST_ANSWER / 2);
    let fitting = files.iter().take_while(|file| list.takes(*file)).count();
    files.truncate(fitting);
    let mut patch = Budget::of(LONGEST_ANSWER / 2 + list.left());
    let shortened = patch.cut(&mut diff);
    Diff { truncated: list.is_exhausted() || shortened, diff, files }
}

/// The compared revisions as arguments of git.
async fn states(request: &GitDiff, repository: &Repository) -> Result<Vec<String>, Error> {
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
        states.push("--cached".to_owned());
    }
    for (field, revision) in [("from", &request.from), ("to", &request.to)] {
        if let Some(revision) = revision {
            states.push(repository.resolve(field, revision, "tree").await?);
        }
    }
    Ok(states)
}

/// A `git diff` that starts no program and does not enter submodules.
pub(super) fn diff(git: Git) -> Git {
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
pub(super) fn cut_at_zero(text: &[u8]) -> &[u8] {
    let end = text.windows(2).rposition(|pair| pair == b"\0:");
    end.map_or(&[], |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(out: &[u8], cut: bool) -> Option<Diff> {
        told(Said { code: Some(0), out: out.to_vec(), cut, complaints: String::new() })
    }

    const ENTRY: &[u8] = b":100644 100644 1 2 M\0f\0";

    #[test]
    fn list_and_patch_are_told_apart_and_cut_each_at_its_end() {
        let diff = said(&[ENTRY, b"1\t2\tf\0\0diff --git a/f b/f\n\0\0\n"].concat(), false).unwrap();
        assert_eq!((diff.files.len(), diff.diff.as_str()), (1, "diff --git a/f b/f\n\0\0\n"));
        assert_eq!((diff.files[0].deletions, diff.truncated), (2, false));
        assert_eq!(said(b"", false).unwrap().files, []);
        let long = [ENTRY, b"\0", &vec![b'x'; LONGEST_DIFF + 1]].concat();
        let diff = said(&long, false).unwrap();
        assert_eq!((diff.files.len(), diff.truncated), (1, true));
        let json = serde_json::to_vec(&diff).unwrap().len();
        assert!(json <= LONGEST_ANSWER && json > LONGEST_ANSWER - 1_000, "{json}");
        let escaped = [ENTRY, b"\0", &vec![1; LONGEST_DIFF]].concat();
        let diff = said(&escaped, false).unwrap();
        assert!(diff.truncated && serde_json::to_vec(&diff).unwrap().len() <= LONGEST_ANSWER);
        let cut = said(&[ENTRY, ENTRY, b":100644 1006"].concat(), true).unwrap();
        assert_eq!((cut.files.len(), cut.truncated), (1, true));
        let many = said(&ENTRY.repeat(LONGEST_LIST / ENTRY.len() + 2), false).unwrap();
        assert!(many.truncated);
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_read_or_refused(text in "[\\x00:MAf0-9 \t]{0,60}", cut: bool) {
            let _ = said(text.as_bytes(), cut);
        }
    }
}
