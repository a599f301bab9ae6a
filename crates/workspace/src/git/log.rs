//! Lists commits, newest first.

use jiff::Timestamp;
use skep_api::{
    budget::{Budget, LONGEST_ANSWER},
    git::{Commit, GitLog, Log, Signature},
};

use super::{
    Refused, plain,
    repository::{Repository, is_hash},
};
use crate::{Error, Place, Run};

/// Hash, parents, author, committer, message. Each field ends with a zero byte.
const FORMAT: &str = "--format=tformat:%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b";
const FIELDS: usize = 10;
/// Used instead of a hash where the current commit need not be resolved first.
const HEAD: &str = "HEAD";

impl Run for GitLog {
    async fn run_without_programs(&self, place: &Place) -> Option<Log> {
        plain::log(self, place).await
    }

    async fn run(self, place: &Place) -> Result<Log, Error> {
        if let Some(log) = plain::log(&self, place).await {
            return Ok(log);
        }
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let Start { commit, seen } = start(&self, &repository).await?;
        let (most, skip) = (format!("-n{}", self.limit + 1), format!("--skip={seen}"));
        let git = repository.reading().at_most(LONGEST_ANSWER).args([
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
            "--end-of-options",
            &commit,
            "--",
        ]);
        let said = git.args(&self.file).run().await?;
        if !said.done() {
            let unborn = commit == HEAD && repository.head().await?.is_none();
            let none = Log { commits: Vec::new(), next_cursor: None };
            return if unborn { Ok(none) } else { Err(Refused::by_words(said.words()).into()) };
        }
        let read = if said.cut { read_cut(&said.out) } else { read(&said.out) };
        let mut commits = read.ok_or(Refused::Unreadable { command: "log" })?;
        let more = said.cut || commits.len() > self.limit as usize;
        commits.truncate(self.limit as usize);
        let more = fit(&mut commits).ok_or(Refused::TooMuch { command: "log" })? || more;
        if more && commits.is_empty() {
            return Err(Refused::TooMuch { command: "log" }.into());
        }
        let first = commits.first().map(|first| first.id.clone());
        let commit = if commit == HEAD { first.unwrap_or(commit) } else { commit };
        let next = Start { commit, seen: seen + commits.len() as u64 };
        Ok(Log { commits, next_cursor: more.then(|| next.cursor()) })
    }
}

/// Shortens a page to the limit of an answer. Returns whether it was shortened; `None` if not even its first commit
/// fits.
pub(super) fn fit(commits: &mut Vec<Commit>) -> Option<bool> {
    let mut budget = Budget::default();
    let fitting = commits.iter().take_while(|commit| budget.takes(*commit)).count();
    commits.truncate(fitting);
    (fitting > 0 || !budget.is_exhausted()).then_some(budget.is_exhausted())
}

/// The first commit of the page.
async fn start(request: &GitLog, repository: &Repository) -> Result<Start, Error> {
    if let Some(cursor) = &request.cursor {
        let start = Start::parse(cursor)?;
        let commit = repository.resolve("cursor", &start.commit, "commit").await?;
        return Ok(Start { commit, ..start });
    }
    let commit = match (&request.revision, &request.file) {
        (Some(revision), _) => repository.resolve("ref", revision, "commit").await?,
        // With a file, the first commit of the page need not be the one at which the log begins.
        (None, Some(_)) => repository.head().await?.unwrap_or_else(|| HEAD.to_owned()),
        (None, None) => HEAD.to_owned(),
    };
    Ok(Start { commit, seen: 0 })
}

/// A commit, whose history never changes, and the number of commits that earlier pages have shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) commit: String,
    pub(super) seen: u64,
}

impl Start {
    pub(super) fn cursor(&self) -> String {
        data_encoding::BASE64URL_NOPAD.encode(format!("{}.{}", self.commit, self.seen).as_bytes())
    }

    pub(super) fn parse(cursor: &str) -> Result<Self, Error> {
        let read = || {
            let bytes = data_encoding::BASE64URL_NOPAD.decode(cursor.as_bytes()).ok()?;
            let text = String::from_utf8(bytes).ok()?;
            let (commit, seen) = text.split_once('.')?;
            let seen = seen.parse().ok().filter(|seen| *seen < u64::from(u32::MAX))?;
            is_hash(commit).then(|| Self { commit: commit.to_owned(), seen })
        };
        read().ok_or_else(|| Error::InvalidValue {
            field: "cursor",
            reason: format!("is `{cursor}`, which no page answered; take `next_cursor` of the page before"),
        })
    }
}

/// Parses the complete commits of output that was cut.
fn read_cut(text: &[u8]) -> Option<Vec<Commit>> {
    let ends: Vec<_> = text.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at).collect();
    let whole = ends.len() / FIELDS * FIELDS;
    read(whole.checked_sub(1).map_or(&[], |last| &text[..=ends[last]]))
}

fn read(text: &[u8]) -> Option<Vec<Commit>> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.is_empty() {
        return Some(Vec::new());
    }
    let fields: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    if !fields.len().is_multiple_of(FIELDS) {
        return None;
    }
    fields.chunks_exact(FIELDS).map(commit).collect()
}

fn commit(fields: &[&[u8]]) -> Option<Commit> {
    let text = |at: usize| String::from_utf8_lossy(fields[at]).into_owned();
    let signature = |at: usize| Signature { name: text(at), email: text(at + 1), date: date(&text(at + 2)) };
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
fn date(seconds: &str) -> Timestamp {
    let seconds = seconds.parse().unwrap_or(0);
    Timestamp::from_second(seconds).unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_comes_back_and_nothing_else_is_one() {
        let start = Start { commit: "a".repeat(40), seen: 50 };
        assert_eq!(Start::parse(&start.cursor()).unwrap(), start);
        for wrong in ["", "x", "LS1vdXRwdXQueA", "YS4x"] {
            assert!(Start::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_ends_at_its_budget_and_where_git_was_cut_off() {
        let one = format!("{}\0\0a\0b\01\0c\0d\02\0subject\0{}\0", "a".repeat(40), "x".repeat(1 << 20));
        let mut page = read(one.repeat(20).as_bytes()).unwrap();
        assert_eq!(fit(&mut page), Some(true));
        assert_eq!(page.len(), 15);
        assert_eq!(fit(&mut page), Some(false));
        assert_eq!(fit(&mut Vec::new()), Some(false));
        let mut huge = read(one.as_bytes()).unwrap();
        huge[0].body = "\u{1}".repeat(LONGEST_ANSWER / 5);
        assert_eq!(fit(&mut huge), None);
        for cut in [1, 2, 30, one.len() - 1] {
            assert_eq!(read_cut(&one.repeat(3).as_bytes()[..3 * one.len() - cut]).unwrap().len(), 2, "{cut}");
        }
        assert!(read_cut(&one.as_bytes()[..one.len() - 1]).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&text);
            let _ = Start::parse(&String::from_utf8_lossy(&text));
        }

        #[test]
        fn any_date_is_a_date(seconds in any::<i64>()) {
            date(&seconds.to_string());
        }
    }
}
