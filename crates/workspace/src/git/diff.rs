//! What differs between two states of the files.

use skep_api::git::{Diff, GitDiff, LONGEST_DIFF};

use super::{Refused, changes::read, program::Git, repository::Repository};
use crate::{Error, Place, Run};

/// The longest list of files that is answered, in bytes.
const LONGEST_LIST: usize = 8 << 20;

impl Run for GitDiff {
    async fn run(self, place: &Place) -> Result<Diff, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let states = states(&self, &repository).await?;
        let git = |what: &[&str], most| {
            let git = diff(repository.reading()).args(what).args(&states).args(["--"]).args(&self.file);
            repository.done(git.at_most(most))
        };
        let context = format!("-U{}", self.context);
        let (patch, list) = tokio::try_join!(
            git(&["-p", &context], LONGEST_DIFF),
            git(&["--raw", "--numstat", "-z"], LONGEST_LIST)
        )?;
        let whole = if list.cut { cut_at_zero(&list.out) } else { &list.out };
        let files = read(whole).ok_or(Refused::Unreadable { command: "diff" })?;
        let diff = match String::from_utf8(patch.out) {
            Ok(text) => text,
            Err(bytes) => String::from_utf8_lossy(bytes.as_bytes()).into_owned(),
        };
        Ok(Diff { diff, files, truncated: patch.cut || list.cut })
    }
}

/// What is compared, as git's arguments.
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

/// A diff that starts no program and looks into no submodule.
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

/// As much as holds whole entries without counts: those come behind all paths.
fn cut_at_zero(text: &[u8]) -> &[u8] {
    let end = text.windows(2).rposition(|pair| pair == b"\0:");
    end.map_or(&[], |end| &text[..end])
}
