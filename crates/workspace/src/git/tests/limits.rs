//! Lists that exceed the maximum size of an answer.

use serde::Serialize;
use skep_api::{
    budget::MAX_ANSWER_BYTES,
    git::{GitAdd, GitStash, GitWorktrees, StashAction},
};

use super::*;

/// This many texts of this length exceed the part of git's output that is read.
const NUMBER: usize = 20;
const LENGTH: usize = 1_000_000;
/// How many of them are read completely.
const COMPLETE: usize = MAX_ANSWER_BYTES / LENGTH;

/// The answer must be at most as long as the limit, and at least three quarters of it.
#[track_caller]
fn assert_nearly_full(answer: &impl Serialize) {
    let bytes = serde_json::to_vec(answer).unwrap().len();
    assert!((MAX_ANSWER_BYTES / 4 * 3..=MAX_ANSWER_BYTES).contains(&bytes), "{bytes}");
}

/// Sorted paths with 16 MB in total. Each component is short enough for file systems, which allow 255 bytes.
fn long_paths() -> Vec<String> {
    let long = vec!["x".repeat(200); 16].join("/");
    (0..5_000).map(|number| format!("{number:04}/{long}")).collect()
}

impl Fixture {
    /// Stages empty files with these names, which need not exist.
    fn stage(&self, names: &[String]) {
        let empty = self.git(&["hash-object", "-w", "--stdin"]);
        let entries = names.iter().map(|name| format!("100644 {empty} 0\t{name}\n"));
        let staged = self.try_git_with_input(&["update-index", "--index-info"], &entries.collect::<String>());
        assert!(staged.status.success(), "{staged:?}");
    }
}

#[test]
fn branches_that_do_not_fit_are_left_out() {
    let fixture = Fixture::new();
    let commit = fixture.commit("first");
    let names = long_paths();
    let lines = names.iter().map(|name| format!("{commit} refs/heads/{name}\n"));
    fs::write(fixture.at(".git/packed-refs"), lines.collect::<String>()).unwrap();
    let found = fixture.answer(fixture.branches(""));
    assert!(found.truncated && found.branches.len() < names.len(), "{}", found.branches.len());
    assert_nearly_full(&found);
    assert!(found.branches.iter().map(|branch| &branch.name).eq(names.iter().take(found.branches.len())));
}

#[test]
fn changes_that_do_not_fit_are_left_out() {
    let fixture = Fixture::new();
    fixture.commit("first");
    // Each file is staged, and missing from the work tree.
    let names = long_paths();
    fixture.stage(&names);
    let found = fixture.answer(fixture.status(""));
    assert_eq!((found.truncated, found.clean), (true, false));
    let listed = found.staged.len() + found.modified.len();
    assert!(listed < 2 * names.len(), "{listed}");
    assert_nearly_full(&found);
}

#[test]
fn work_trees_beyond_the_output_that_is_read_are_left_out() {
    let fixture = Fixture::new();
    fixture.commit("first");
    for number in 0..NUMBER {
        let own = fixture.at(&format!(".git/worktrees/{number}"));
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("gitdir"), format!("/nowhere/{number}/.git\n")).unwrap();
        fs::write(own.join("commondir"), "../..\n").unwrap();
        fs::write(own.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        // Git lists the reason of the lock, too.
        fs::write(own.join("locked"), "x".repeat(LENGTH)).unwrap();
    }
    let found = fixture.answer(GitWorktrees { path: fixture.path("") });
    // The list has the main work tree, too.
    assert_eq!((found.worktrees.len(), found.truncated), (COMPLETE + 1, true));
}

#[test]
fn stashes_beyond_the_output_that_is_read_are_left_out() {
    let fixture = Fixture::new();
    let commit = fixture.commit("first");
    fixture.git(&["update-ref", "refs/stash", &commit]);
    let line = format!("{commit} {commit} Ada <ada@example.com> 1700000000 +0000\t{}\n", "x".repeat(LENGTH));
    fs::create_dir_all(fixture.at(".git/logs/refs")).unwrap();
    fs::write(fixture.at(".git/logs/refs/stash"), line.repeat(NUMBER)).unwrap();
    let list = GitStash { path: fixture.path(""), action: StashAction::List, message: None };
    let found = fixture.answer(list);
    assert_eq!((found.stashes.len(), found.truncated), (COMPLETE, true));
    assert!(found.stashes.iter().all(|stash| stash.message.len() == LENGTH));
    assert_nearly_full(&found);
}

#[test]
fn staged_files_beyond_the_output_that_is_read_are_left_out() {
    let fixture = Fixture::new();
    fixture.commit("first");
    // No file system allows names of this length, but an index does.
    let name = |number: usize| format!("{number:02}{}", "x".repeat(LENGTH - 2));
    fixture.stage(&(0..NUMBER).map(name).collect::<Vec<_>>());
    // This stages nothing new, and lists what is staged already.
    let add = GitAdd { path: fixture.path(""), files: Some(Vec::new()) };
    let found = fixture.answer(add);
    assert_eq!((found.staged.len(), found.truncated), (COMPLETE, true));
    assert!(found.staged.iter().all(|file| file.path.len() == LENGTH));
    assert_nearly_full(&found);
}
