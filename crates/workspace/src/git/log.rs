//! Lists commits, newest first.

use jiff::Timestamp;
use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{Commit, GitLog, Log, Signature},
};

use super::{
    GitError,
    repository::{Repository, is_hash},
};
use crate::{Error, Place, Run};

/// Hash, parents, author, committer, message. Each field ends with a zero byte.
const FORMAT: &str = "--format=tformat:%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b";
const FIELDS: usize = 10;
/// Used instead of a hash where the current commit need not be resolved first.
const HEAD: &str = "HEAD";

impl Run for GitLog {
    async fn run(self, place: &Place) -> Result<Log, Error> {
        let repository = Repository::find_to_read(place, self.path.as_ref()).await?;
        let PageStart { commit, offset: seen } = page_start(&self, &repository).await?;
        let (most, skip) = (format!("-n{}", self.limit + 1), format!("--skip={seen}"));
        let git = repository.read_only_git().max_output(MAX_ANSWER_BYTES).args([
            "log",
            "-z",
            "--no-color",
            "--no-show-signature",
            "--no-mailmap",
            "--no-notes",
            "--no-decorate",
            "--no-ext-diff",
            "--no-textconv",
            FORMAT,
            &most,
            &skip,
        ]);
        // Without a revision, git tells a branch without commits from one that is damaged.
        let git = if commit == HEAD { git } else { git.args(["--end-of-options", &commit]) };
        let output = git.args(["--"]).args(&self.file).run().await?;
        if !output.is_success() {
            let message = output.message();
            let none = Log { commits: Vec::new(), next_cursor: None };
            let unborn = message.contains("does not have any commits yet");
            return if unborn { Ok(none) } else { Err(GitError::from_message(message).into()) };
        }
        let read = if output.truncated { parse_cut(&output.stdout) } else { parse_commits(&output.stdout) };
        let mut commits = read.ok_or(GitError::UnexpectedOutput { command: "log" })?;
        let more = output.truncated || commits.len() > self.limit as usize;
        commits.truncate(self.limit as usize);
        let more = fit_page(&mut commits).ok_or(GitError::OutputTooLarge { command: "log" })? || more;
        if more && commits.is_empty() {
            return Err(GitError::OutputTooLarge { command: "log" }.into());
        }
        let first = commits.first().map(|first| first.id.clone());
        let commit = if commit == HEAD { first.unwrap_or(commit) } else { commit };
        let next = PageStart { commit, offset: seen + commits.len() as u64 };
        Ok(Log { commits, next_cursor: more.then(|| next.cursor()) })
    }
}

/// Shortens a page to the limit of an answer. Returns whether it was shortened; `None` if not even its first commit
/// fits.
fn fit_page(commits: &mut Vec<Commit>) -> Option<bool> {
    let mut budget = Budget::default();
    let fitting = commits.iter().take_while(|commit| budget.try_add(*commit)).count();
    commits.truncate(fitting);
    (fitting > 0 || !budget.is_exhausted()).then_some(budget.is_exhausted())
}

/// The first commit of the page.
async fn page_start(request: &GitLog, repository: &Repository) -> Result<PageStart, Error> {
    if let Some(cursor) = &request.cursor {
        let start = PageStart::parse(cursor)?;
        let commit = repository.resolve("cursor", &start.commit, "commit").await?;
        return Ok(PageStart { commit, ..start });
    }
    let commit = match (&request.revision, &request.file) {
        (Some(revision), _) => repository.resolve("ref", revision, "commit").await?,
        // With a file, the first commit of the page need not be the one at which the log begins.
        (None, Some(_)) => repository.head().await?.unwrap_or_else(|| HEAD.to_owned()),
        (None, None) => HEAD.to_owned(),
    };
    Ok(PageStart { commit, offset: 0 })
}

/// A commit, whose history never changes, and the number of commits that earlier pages have shown.
#[derive(Debug, PartialEq, Eq)]
struct PageStart {
    commit: String,
    offset: u64,
}

impl PageStart {
    fn cursor(&self) -> String {
        data_encoding::BASE64URL_NOPAD.encode(format!("{}.{}", self.commit, self.offset).as_bytes())
    }

    fn parse(cursor: &str) -> Result<Self, Error> {
        let read = || {
            let bytes = data_encoding::BASE64URL_NOPAD.decode(cursor.as_bytes()).ok()?;
            let text = String::from_utf8(bytes).ok()?;
            let (commit, seen) = text.split_once('.')?;
            let seen = seen.parse().ok().filter(|seen| *seen < u64::from(u32::MAX))?;
            is_hash(commit).then(|| Self { commit: commit.to_owned(), offset: seen })
        };
        read().ok_or_else(|| Error::InvalidValue {
            field: "cursor",
            reason: format!("is `{cursor}`, which no page answered; take `next_cursor` of the page before"),
        })
    }
}

/// Parses the complete commits of output that was cut.
fn parse_cut(text: &[u8]) -> Option<Vec<Commit>> {
    let ends: Vec<_> = text.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at).collect();
    let whole = ends.len() / FIELDS * FIELDS;
    parse_commits(whole.checked_sub(1).map_or(&[], |last| &text[..=ends[last]]))
}

fn parse_commits(text: &[u8]) -> Option<Vec<Commit>> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.is_empty() {
        return Some(Vec::new());
    }
    let fields: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    if !fields.len().is_multiple_of(FIELDS) {
        return None;
    }
    fields.chunks_exact(FIELDS).map(parse_commit).collect()
}

fn parse_commit(fields: &[&[u8]]) -> Option<Commit> {
    let text = |at: usize| String::from_utf8_lossy(fields[at]).into_owned();
    let signature =
        |at: usize| Signature { name: text(at), email: text(at + 1), date: clamped_date(&text(at + 2)) };
    let id = text(0);
    is_hash(&id).then(|| Commit {
        id,
        parents: text(1).split_ascii_whitespace().map(str::to_owned).collect(),
        author: signature(2),
        committer: signature(5),
        subject: text(8),
        body: text(9).trim_end().to_owned(),
    })
}

/// Clamps the date: a commit can contain any number, or none.
fn clamped_date(seconds: &str) -> Timestamp {
    let seconds = seconds.parse().unwrap_or(0);
    Timestamp::from_second(seconds).unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_comes_back_and_nothing_else_is_one() {
        let start = PageStart { commit: "a".repeat(40), offset: 50 };
        assert_eq!(PageStart::parse(&start.cursor()).unwrap(), start);
        for wrong in ["", "x", "LS1vdXRwdXQueA", "YS4x"] {
            assert!(PageStart::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_ends_at_its_budget_and_where_git_was_cut_off() {
        let one = format!("{}\0\0a\0b\01\0c\0d\02\0subject\0{}\0", "a".repeat(40), "x".repeat(1 << 20));
        let mut page = parse_commits(one.repeat(20).as_bytes()).unwrap();
        assert_eq!(fit_page(&mut page), Some(true));
        assert_eq!(page.len(), 15);
        assert_eq!(fit_page(&mut page), Some(false));
        assert_eq!(fit_page(&mut Vec::new()), Some(false));
        let mut huge = parse_commits(one.as_bytes()).unwrap();
        huge[0].body = "\u{1}".repeat(MAX_ANSWER_BYTES / 5);
        assert_eq!(fit_page(&mut huge), None);
        for cut in [1, 2, 30, one.len() - 1] {
            assert_eq!(
                parse_cut(&one.repeat(3).as_bytes()[..3 * one.len() - cut]).unwrap().len(),
                2,
                "{cut}"
            );
        }
        assert!(parse_cut(&one.as_bytes()[..one.len() - 1]).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn any_output_is_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_commits(&text);
            let _ = PageStart::parse(&String::from_utf8_lossy(&text));
        }

        #[test]
        fn any_date_is_a_date(seconds in any::<i64>()) {
            clamped_date(&seconds.to_string());
        }
    }
}
