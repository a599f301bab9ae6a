//! Compares status and diff with those of git.

use std::{cell::Cell, os::unix::fs::PermissionsExt};

use proptest::test_runner::{TestCaseError, TestRunner};
use skep_api::git::{ChangeKind, Diff, DiffFile, GitDiff, GitStatus, RepositoryStatus};

use super::*;

/// File names, some of them unusual.
pub(super) const NAMES: [&str; 12] = [
    "a",
    "b.txt",
    "b/c",
    "b/d/e",
    "b.d",
    "d/x.o",
    "d/build/y",
    "d/q\"u\tote",
    "é ü",
    "d/new\nline",
    "z/z/z/z",
    "a b",
];
const CONTENTS: [&[u8]; 9] = [
    b"",
    b"one\n",
    b"two\n",
    b"one\ntwo\nthree\nfour\nfive\n",
    b"one\ntwo\n3\nfour\nfive\n",
    b"fn f() {\n\n\n\n    a\n    b\n}\nlast",
    b"fn f() {\n\n\n\n    a\n    c\n}\nlast",
    b"no\0text\n",
    b"r\r\n",
];
const RULES: [&str; 8] = [
    "*.o\n",
    "build/\n",
    "*\n!a\n!*/\n",
    "/d/*\n!/d/x.o\n",
    "[ab]*\n",
    "z/**/z\n",
    "# nothing\n",
    "d\n!d/x.o\n",
];

/// A random change to files or to the index.
#[derive(Debug, Clone)]
enum Event {
    Write(usize, usize),
    Touch(usize),
    Remove(usize),
    Move(usize, usize),
    Mode(usize),
    Link(usize),
    Rules(Option<usize>, usize),
    Add(usize),
    AddAll,
    Forget(usize),
    Unstage,
    Commit,
    Rename(usize, usize),
    Conflict(usize),
    Checkout(bool),
    Locked(bool),
    Refresh,
    Gc,
}

fn event() -> impl Strategy<Value = Event> {
    let name = || 0..NAMES.len();
    prop_oneof![
        8 => (name(), 0..CONTENTS.len()).prop_map(|(name, content)| Event::Write(name, content)),
        1 => name().prop_map(Event::Touch),
        2 => name().prop_map(Event::Remove),
        2 => (name(), name()).prop_map(|(from, to)| Event::Move(from, to)),
        1 => name().prop_map(Event::Mode),
        1 => name().prop_map(Event::Link),
        2 => (prop::option::of(name()), 0..RULES.len()).prop_map(|(name, rules)| Event::Rules(name, rules)),
        4 => name().prop_map(Event::Add),
        2 => Just(Event::AddAll),
        1 => name().prop_map(Event::Forget),
        1 => Just(Event::Unstage),
        2 => Just(Event::Commit),
        1 => (name(), name()).prop_map(|(from, to)| Event::Rename(from, to)),
        1 => name().prop_map(Event::Conflict),
        1 => any::<bool>().prop_map(Event::Checkout),
        1 => any::<bool>().prop_map(Event::Locked),
        1 => Just(Event::Refresh),
        1 => Just(Event::Gc),
    ]
}

/// Applies an event; impossible ones have no effect.
fn happen(ground: &Ground, event: &Event) {
    let at = |name: &usize| ground.at(NAMES[*name]);
    let run = |words: &[&str]| drop(ground.tried(1_700_000_000, words));
    let write = |path: &Path, content: &[u8]| {
        let _ = fs::create_dir_all(path.parent().unwrap());
        let _ = fs::write(path, content);
    };
    match event {
        Event::Write(name, content) => write(&at(name), CONTENTS[*content]),
        Event::Touch(name) => {
            let Ok(content) = fs::read(at(name)) else { return };
            let _ = fs::remove_file(at(name));
            write(&at(name), &content);
        }
        Event::Remove(name) => {
            let _ = fs::remove_file(at(name)).or_else(|_| fs::remove_dir_all(at(name)));
        }
        Event::Move(from, to) => drop(fs::rename(at(from), at(to))),
        Event::Mode(name) => {
            let Ok(found) = fs::symlink_metadata(at(name)) else { return };
            if found.is_file() {
                let mode = found.permissions().mode() ^ 0o111;
                fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        Event::Link(name) => {
            let _ = fs::remove_file(at(name));
            let _ = symlink("b", at(name));
        }
        Event::Rules(name, rules) => {
            let folder = name.map_or(ground.at(""), |name| at(&name).parent().unwrap().to_owned());
            write(&folder.join(".gitignore"), RULES[*rules].as_bytes());
        }
        Event::Add(name) => run(&["add", "-f", "--", NAMES[*name]]),
        Event::AddAll => run(&["add", "-A"]),
        Event::Forget(name) => run(&["rm", "-q", "-r", "--cached", "--", NAMES[*name]]),
        Event::Unstage => run(&["reset", "-q"]),
        Event::Commit => run(&["commit", "-q", "-m", "Change"]),
        Event::Rename(from, to) => run(&["mv", "--", NAMES[*from], NAMES[*to]]),
        Event::Conflict(name) => conflict(ground, NAMES[*name]),
        Event::Checkout(true) => run(&["checkout", "-q", "--detach"]),
        Event::Checkout(false) => run(&["checkout", "-q", "main"]),
        Event::Locked(true) => drop(fs::write(ground.at(".git/index.lock"), "")),
        Event::Locked(false) => drop(fs::remove_file(ground.at(".git/index.lock"))),
        Event::Refresh => run(&["update-index", "-q", "--refresh"]),
        Event::Gc => run(&["gc", "-q"]),
    }
}

/// Adds a conflict to the index.
fn conflict(ground: &Ground, name: &str) {
    let blob = |content: &str| {
        fs::write(ground.folder.path().join("blob"), content).unwrap();
        ground.git(&["hash-object", "-w", "../blob"])
    };
    let (one, other) = (blob("one"), blob("other"));
    let _ = ground.tried(0, &["update-index", "--force-remove", "--", name]);
    let stages = format!("100644 {one} 2\t{name}\0100644 {other} 3\t{name}\0");
    let file = ground.folder.path().join("stages");
    fs::write(&file, stages).unwrap();
    let mut git = Command::new("git");
    git.args(["update-index", "-z", "--index-info"]).current_dir(ground.at("")).env("HOME", "/nonexistent");
    git.stdin(fs::File::open(file).unwrap()).status().unwrap();
}

impl Ground {
    pub(super) fn status(&self, name: &str) -> GitStatus {
        GitStatus { path: self.path(name) }
    }

    pub(super) fn diff(&self, name: &str) -> GitDiff {
        GitDiff { path: Some(self.path(name)), staged: false, from: None, to: None, file: None, context: 3 }
    }

    /// Returns the reader's answer, which must be the same as git's.
    #[track_caller]
    fn agree<O: Run + Clone>(&self, operation: &O) -> Option<O::Answer>
    where
        O::Answer: PartialEq + std::fmt::Debug,
    {
        let read = self.read(operation);
        if let Some(read) = &read {
            assert_eq!(read, &self.say(operation.clone()).unwrap());
        }
        read
    }

    #[track_caller]
    pub(super) fn same_status(&self, name: &str) -> RepositoryStatus {
        self.agree(&self.status(name)).expect("it was left to git")
    }

    #[track_caller]
    pub(super) fn same_diff(&self, diff: &GitDiff) -> Diff {
        self.agree(diff).expect("it was left to git")
    }

    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// The parts of a diff that do not depend on which of several minimal sets of lines was chosen.
fn settled(diff: &Diff) -> Vec<(String, ChangeKind, bool, i64)> {
    let file = |file: &DiffFile| {
        let grown = file.additions as i64 - file.deletions as i64;
        (file.path.clone(), file.change, file.binary, grown)
    };
    diff.files.iter().map(file).collect()
}

/// After random changes the reader's answers agree with git's, and it answers most requests.
#[test]
fn what_is_changed_is_what_git_says() {
    let (asked, statuses, diffs, as_git) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&prop::collection::vec(event(), 1..25), |events| {
        let ground = Ground::new();
        for event in &events {
            happen(&ground, event);
            asked.set(asked.get() + 1);
            let status = ground.status("");
            if let Some(read) = ground.read(&status) {
                statuses.set(statuses.get() + 1);
                let said = ground.say(status).map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(read, said);
            }
            let staged = GitDiff { staged: true, ..ground.diff("") };
            let since = GitDiff { from: Some("main".to_owned()), ..ground.diff("") };
            for diff in [ground.diff(""), staged, since] {
                if let Some(read) = ground.read(&diff) {
                    diffs.set(diffs.get() + 1);
                    let said = ground.say(diff).map_err(|error| TestCaseError::fail(error.to_string()))?;
                    prop_assert_eq!(settled(&read), settled(&said));
                    as_git.set(as_git.get() + usize::from(read == said));
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let share = |read: &Cell<usize>, asked: usize| 100 * read.get() / asked;
    let told = (share(&statuses, asked.get()), share(&diffs, 3 * asked.get()));
    assert!(told.0 > 70 && told.1 > 45, "in percent: {told:?}");
    assert!(10 * as_git.get() > 9 * diffs.get(), "{} of {}", as_git.get(), diffs.get());
}

/// The reader answers every step of ordinary work.
#[test]
fn ordinary_changes_are_read_without_git() {
    let ground = Ground::new();
    assert!(ground.same_status("").clean);
    ground.write("src/main.rs", "fn main() {\n    one();\n    two();\n    three();\n}\n");
    ground.write("README", "Read me\n");
    ground.write("target/debug/x", "x");
    ground.write(".gitignore", "target/\n*.log\n!keep.log\n");
    ground.write("keep.log", "");
    assert_eq!(ground.same_status("").untracked.len(), 4);
    ground.git(&["add", "."]);
    assert_eq!(ground.same_status("").staged.len(), 4);
    let staged = GitDiff { staged: true, ..ground.diff("") };
    assert_eq!(ground.same_diff(&staged).files.len(), 4);
    ground.commit("First");
    assert!(ground.same_status("").clean && ground.same_diff(&ground.diff("")).files.is_empty());
    ground.write("src/main.rs", "fn main() {\n    one();\n    2();\n    three();\n}\n");
    ground.write("README", "");
    fs::remove_file(ground.at("keep.log")).unwrap();
    let status = ground.same_status("src");
    assert_eq!(status.modified.len(), 3);
    assert_eq!(status.modified[1].change, ChangeKind::Deleted);
    let diff = ground.same_diff(&ground.diff(""));
    assert_eq!((diff.files.len(), diff.files[2].additions), (3, 1));
    assert!(diff.diff.contains("@@ -1,5 +1,5 @@\n"), "{}", diff.diff);
    let one = GitDiff { file: Some("src".to_owned()), context: 1, ..ground.diff("") };
    assert_eq!(ground.same_diff(&one).files.len(), 1);
    ground.git(&["commit", "-q", "-a", "-m", "Second"]);
    ground.git(&["mv", "README", "READ.ME"]);
    let moved = ground.same_status("");
    assert_eq!(
        (moved.staged[0].change, moved.staged[0].from.as_deref()),
        (ChangeKind::Renamed, Some("README"))
    );
    let between = GitDiff { from: Some("main".to_owned()), to: Some("HEAD".to_owned()), ..ground.diff("") };
    assert_eq!(ground.same_diff(&between).files, []);
    // A change in the same second as the index, of the same size.
    ground.git(&["commit", "-q", "-m", "Third"]);
    for text in ["one\n", "two\n", "six\n"] {
        ground.write("READ.ME", text);
        ground.git(&["add", "READ.ME"]);
        ground.same_status("");
        ground.write("READ.ME", "ten\n");
        assert_eq!(ground.same_status("").modified.len(), 1);
        assert_eq!(ground.same_diff(&ground.diff("")).files.len(), 1);
    }
}

#[test]
fn a_binary_file_is_one_where_its_mode_alone_changed_too() {
    let ground = Ground::new();
    ground.write("file", "a\0b");
    ground.git(&["add", "."]);
    fs::set_permissions(ground.at("file"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(ground.same_diff(&ground.diff("")).files[0].binary);
    ground.write("file", "a\0c");
    assert!(ground.same_diff(&ground.diff("")).diff.ends_with("Binary files a/file and b/file differ\n"));
}

#[test]
fn every_sort_of_repository_is_read_or_left_to_git() {
    let ground = Ground::new();
    for number in 0..3 {
        ground.write("file", format!("line {number}\nsame\n"));
        ground.git(&["add", "."]);
        ground.commit(&number.to_string());
    }
    let earlier = ground.git(&["rev-parse", "HEAD~2"]);
    ground.git(&["tag", "-a", "-m", "Tag", "first", &earlier]);
    let between = GitDiff { from: Some("first".to_owned()), to: Some("main".to_owned()), ..ground.diff("") };
    assert_eq!(ground.same_diff(&between).files.len(), 1);
    let staged = GitDiff { from: Some("first".to_owned()), staged: true, ..ground.diff("") };
    assert_eq!(ground.same_diff(&staged).files.len(), 1);
    ground.git(&["clone", "-q", ".", "../root/clone"]);
    ground.write("clone/new", "");
    // A nested repository is left to git.
    assert_eq!(ground.read(&ground.status("")), None);
    let inside = |words: &[&str]| ground.git(&[&["-C", "clone"], words].concat());
    inside(&["commit", "-q", "--allow-empty", "-m", "Ahead"]);
    let status = ground.same_status("clone");
    assert_eq!(
        (status.upstream.as_deref(), status.ahead, status.untracked.len()),
        (Some("origin/main"), Some(1), 1)
    );
    inside(&["worktree", "add", "-q", "../beside", "-b", "beside"]);
    ground.write("beside/file", "other\n");
    assert_eq!(ground.same_status("beside").modified.len(), 1);
    assert_eq!(ground.same_diff(&ground.diff("beside")).files.len(), 1);
    ground.git(&["clone", "-q", "--bare", "clone", "bare.git"]);
    assert_eq!(ground.read(&ground.status("bare.git")), None);
    inside(&["checkout", "-q", "--detach"]);
    ground.agree(&ground.status("clone"));
    inside(&["pack-refs", "--all"]);
    inside(&["gc", "-q"]);
    ground.agree(&ground.status("clone"));
    ground.git(&[
        "clone",
        "-q",
        "--no-local",
        "--depth",
        "1",
        &format!("file://{}", ground.at("clone").display()),
        "shallow",
    ]);
    assert_eq!(ground.read(&ground.status("shallow")), None);
}

#[test]
fn what_changes_the_meaning_of_files_is_left_to_git() {
    let ground = Ground::new();
    ground.write("file", "text\n");
    ground.write("d/other", "text\n");
    ground.git(&["add", "."]);
    ground.commit("First");
    ground.same_status("");
    for (key, value) in [
        ("core.autocrlf", "true"),
        ("core.eol", "crlf"),
        ("core.filemode", "false"),
        ("core.ignorecase", "true"),
        ("core.worktree", "/"),
        ("core.sparsecheckout", "true"),
        ("core.trustctime", "false"),
        ("core.abbrev", "20"),
        ("diff.renames", "copies"),
        ("diff.algorithm", "patience"),
        ("status.aheadbehind", "false"),
        ("filter.x.clean", "cat"),
        ("index.version", "4"),
        ("extensions.worktreeconfig", "true"),
    ] {
        let before = fs::read(ground.at(".git/config")).unwrap();
        ground.git(&["config", key, value]);
        assert_eq!(ground.read(&ground.status("")), None, "{key}");
        assert_eq!(ground.read(&ground.diff("")), None, "{key}");
        fs::write(ground.at(".git/config"), before).unwrap();
    }
    let index = fs::read(ground.at(".git/index")).unwrap();
    for words in [
        &["update-index", "--index-version", "4"][..],
        &["update-index", "--assume-unchanged", "file"],
        &["update-index", "--skip-worktree", "file"],
        &["update-index", "--split-index"],
        &["update-index", "--add", "--cacheinfo", "160000,1111111111111111111111111111111111111111,sub"],
        &["add", "-N", "new"],
    ] {
        ground.write("new", "");
        ground.git(words);
        assert_eq!(ground.read(&ground.status("")), None, "{words:?}");
        fs::write(ground.at(".git/index"), &index).unwrap();
    }
    ground.git(&["add", "new"]);
    ground.same_status("");
}

/// Enough files for several threads.
#[test]
fn files_as_old_as_the_index_are_read() {
    let ground = Ground::new();
    let name = |number: usize| format!("d{}/file{number}", number % 7);
    for number in 0..900 {
        ground.write(&name(number), format!("line\n{number}\n"));
    }
    ground.git(&["add", "."]);
    ground.commit("First");
    for number in (0..900).step_by(90) {
        // Of the same length as before.
        ground.write(&name(number), format!("Line\n{number}\n"));
    }
    // An old index file makes all metadata inconclusive.
    let index = fs::File::open(ground.at(".git/index")).unwrap();
    index.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(ground.same_status("").modified.len(), 10);
    assert_eq!(ground.same_diff(&ground.diff("")).files.len(), 10);
}

/// Attributes matter only when contents are compared.
#[test]
fn what_changes_a_content_is_left_to_git() {
    let ground = Ground::new();
    ground.write("file", "text\n");
    ground.write("d/other", "text\n");
    ground.git(&["add", "."]);
    ground.commit("First");
    ground.write("d/.gitattributes", "other ident\n* text=auto\n");
    ground.write("d/other", "more\n");
    assert_eq!(ground.read(&ground.diff("")), None);
    // The content is the same, but git might convert it.
    ground.write("d/other", "text\n");
    assert_eq!(ground.read(&ground.diff("")), None);
    assert_eq!(ground.read(&ground.status("")), None);
    ground.write("d/.gitattributes", "nothing ident\n* text=auto\n");
    ground.write("file", "next\n");
    assert_eq!(ground.same_diff(&ground.diff("")).files.len(), 1);
    ground.write("file", "tex\r\n");
    ground.write(".gitattributes", "file text\n");
    assert_eq!(ground.read(&ground.diff("")), None);
    assert_eq!(ground.read(&ground.status("")), None);
    ground.write(".gitattributes", "file diff=rust\n");
    assert_eq!(ground.read(&ground.diff("")), None);
}
