//! Prints the answers of git operations as text.

use std::io;

use data_encoding::BASE64;
use skep_api::git::{
    BlobEncoding, Branches, ChangeKind, ChangedPath, Commit, Committed, FetchedRefs, Log, Pulled, Pushed,
    Remotes, RepositoryStatus, Shown, Tags, Worktrees,
};

use crate::output::{self, line, visible};

/// Abbreviates a hash for output.
pub(super) fn short(id: &str) -> &str {
    id.get(..10).unwrap_or(id)
}

pub(super) fn status(status: &RepositoryStatus) -> io::Result<()> {
    let branch = status.branch.as_deref().unwrap_or("no branch");
    let at = status.head.as_deref().map_or("no commit yet", short);
    let upstream = match (&status.upstream, status.ahead, status.behind) {
        (Some(upstream), Some(ahead), Some(behind)) => {
            format!(", {ahead} ahead of {upstream}, {behind} behind")
        }
        (Some(upstream), ..) => format!(", {upstream} is gone"),
        (None, ..) => String::new(),
    };
    line(&visible(&format!("on {branch} at {at}{upstream}")))?;
    changes("staged", &status.staged)?;
    changes("modified", &status.modified)?;
    for (word, files) in [("untracked", &status.untracked), ("conflicted", &status.conflicted)] {
        for file in files {
            line(&format!("{word:<10} {}", visible(&file.path)))?;
        }
    }
    if status.clean { line("nothing is changed") } else { Ok(()) }
}

pub(super) fn changes(word: &str, changes: &[ChangedPath]) -> io::Result<()> {
    for changed in changes {
        let kind = match changed.change {
            ChangeKind::Added => "added",
            ChangeKind::Modified => "modified",
            ChangeKind::Deleted => "deleted",
            ChangeKind::Renamed => "renamed",
            ChangeKind::Copied => "copied",
            ChangeKind::Typechange => "typechange",
        };
        let from = changed.from.as_ref().map(|from| format!("{from} -> ")).unwrap_or_default();
        line(&format!("{word:<10} {kind:<10} {}", visible(&format!("{from}{}", changed.path))))?;
    }
    Ok(())
}

pub(super) fn log(log: &Log) -> io::Result<()> {
    log.commits.iter().try_for_each(commit)
}

fn commit(commit: &Commit) -> io::Result<()> {
    let author = &commit.author;
    line(&format!("commit {}", commit.id))?;
    line(&visible(&format!("Author: {} <{}>", author.name, author.email)))?;
    line(&format!("Date:   {:.0}", author.date))?;
    line("")?;
    for text in std::iter::once(commit.subject.as_str()).chain(body_lines(&commit.body)) {
        line(format!("    {}", visible(text)).trim_end())?;
    }
    line("")
}

/// Prints a commit with its changes, or the content of a file.
pub(super) fn shown(shown: &Shown) -> io::Result<()> {
    if let Some(file) = &shown.file {
        return match file.encoding {
            BlobEncoding::Utf8 => output::bytes(output::visible_lines(&file.content).as_bytes()),
            BlobEncoding::Base64 => {
                let decoded = BASE64.decode(file.content.as_bytes());
                output::bytes(&decoded.map_err(|error| io::Error::other(error.to_string()))?)
            }
        };
    }
    commit(&shown.commit)?;
    let diff = shown.changes.as_ref().map_or("", |changes| changes.diff.as_str());
    output::bytes(output::visible_lines(diff).as_bytes())
}

pub(super) fn tags(tags: &Tags) -> io::Result<()> {
    tags.tags.iter().try_for_each(|tag| {
        let message = tag.message.as_deref().unwrap_or_default();
        line(visible(&format!("{} {} {message}", tag.name, short(&tag.commit))).trim_end())
    })
}

pub(super) fn remotes(remotes: &Remotes) -> io::Result<()> {
    remotes.remotes.iter().try_for_each(|remote| {
        let push = remote.push_url.as_ref().map(|url| format!(" (push: {url})")).unwrap_or_default();
        line(&visible(&format!("{} {}{push}", remote.name, remote.url)))
    })
}

pub(super) fn fetched(fetched: &FetchedRefs) -> io::Result<()> {
    if fetched.changed.is_empty() {
        return line("nothing new");
    }
    fetched.changed.iter().try_for_each(|changed| {
        let from = changed.from.as_deref().map_or("new", short);
        let to = changed.to.as_deref().map_or("gone", short);
        line(&visible(&format!("{}: {from} -> {to}", changed.name)))
    })
}

/// The lines of a commit body, preceded by the empty line that separates it from the subject.
fn body_lines(body: &str) -> impl Iterator<Item = &str> {
    let gap = if body.is_empty() { None } else { Some("") };
    gap.into_iter().chain(body.lines())
}

pub(super) fn branches(branches: &Branches) -> io::Result<()> {
    if branches.detached {
        line("* no branch")?;
    }
    for branch in &branches.branches {
        let mark = if branches.current.as_ref() == Some(&branch.name) && !branch.remote { '*' } else { ' ' };
        let upstream = match (&branch.upstream, branch.ahead, branch.behind) {
            (Some(upstream), Some(ahead), Some(behind)) => {
                format!(" [{upstream}: {ahead} ahead, {behind} behind]")
            }
            (Some(upstream), ..) => format!(" [{upstream}]"),
            (None, ..) => String::new(),
        };
        line(&visible(&format!("{mark} {} {}{upstream}", branch.name, short(&branch.commit))))?;
    }
    Ok(())
}

pub(super) fn worktrees(worktrees: &Worktrees) -> io::Result<()> {
    for tree in &worktrees.worktrees {
        let at = tree.head.as_deref().map_or("-", short);
        line(&visible(&format!("{} {at} {}", tree.path, tree.branch.as_deref().unwrap_or("-"))))?;
    }
    Ok(())
}

pub(super) fn committed(commit: &Committed) -> io::Result<()> {
    let branch = commit.branch.as_deref().unwrap_or("no branch");
    line(&visible(&format!("[{branch} {}] {}", short(&commit.commit), commit.subject)))?;
    line(&format!(
        "{} changed, {} added, {} deleted",
        output::counted(commit.files_changed, "file"),
        output::counted(commit.additions, "line"),
        commit.deletions
    ))
}

pub(super) fn pushed(pushed: &Pushed) -> io::Result<()> {
    let from = pushed.from.as_deref().map_or("new", short);
    line(&visible(&format!("{} to {}: {from} -> {}", pushed.branch, pushed.remote, short(&pushed.to))))
}

pub(super) fn pulled(pulled: &Pulled) -> io::Result<()> {
    let from = pulled.from.as_deref().map_or("nothing", short);
    line(&format!(
        "{from} -> {}: {}, {} changed",
        short(&pulled.to),
        output::counted(pulled.commits, "commit"),
        output::counted(pulled.files_changed, "file")
    ))
}
