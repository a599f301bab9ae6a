//! Compares status and diff with those of git.

use std::{cell::RefCell, os::unix::fs::PermissionsExt};

use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};
use skep_api::{
    error::ErrorCode,
    git::{ChangeKind, Diff, DiffFile, GitDiff, GitStatus, RepositoryStatus},
};

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
fn apply_event(fixture: &Fixture, event: &Event) {
    let at = |name: &usize| fixture.at(NAMES[*name]);
    let run = |arguments: &[&str]| drop(fixture.try_git(1_700_000_000, arguments));
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
            let folder = name.map_or(fixture.at(""), |name| at(&name).parent().unwrap().to_owned());
            write(&folder.join(".gitignore"), RULES[*rules].as_bytes());
        }
        Event::Add(name) => run(&["add", "-f", "--", NAMES[*name]]),
        Event::AddAll => run(&["add", "-A"]),
        Event::Forget(name) => run(&["rm", "-q", "-r", "--cached", "--", NAMES[*name]]),
        Event::Unstage => run(&["reset", "-q"]),
        Event::Commit => run(&["commit", "-q", "-m", "Change"]),
        Event::Rename(from, to) => run(&["mv", "--", NAMES[*from], NAMES[*to]]),
        Event::Conflict(name) => conflict(fixture, NAMES[*name]),
        Event::Checkout(true) => run(&["checkout", "-q", "--detach"]),
        Event::Checkout(false) => run(&["checkout", "-q", "main"]),
        Event::Locked(true) => drop(fs::write(fixture.at(".git/index.lock"), "")),
        Event::Locked(false) => drop(fs::remove_file(fixture.at(".git/index.lock"))),
        Event::Refresh => run(&["update-index", "-q", "--refresh"]),
        Event::Gc => run(&["gc", "-q"]),
    }
}

/// Adds a conflict to the index.
fn conflict(fixture: &Fixture, name: &str) {
    let blob = |content: &str| {
        fs::write(fixture.folder.path().join("blob"), content).unwrap();
        fixture.git(&["hash-object", "-w", "../blob"])
    };
    let (one, other) = (blob("one"), blob("other"));
    let _ = fixture.try_git(0, &["update-index", "--force-remove", "--", name]);
    let stages = format!("100644 {one} 2\t{name}\0100644 {other} 3\t{name}\0");
    let file = fixture.folder.path().join("stages");
    fs::write(&file, stages).unwrap();
    let mut git = Command::new("git");
    git.args(["update-index", "-z", "--index-info"]).current_dir(fixture.at("")).env("HOME", "/nonexistent");
    git.stdin(fs::File::open(file).unwrap()).status().unwrap();
}

impl Fixture {
    pub(super) fn status(&self, name: &str) -> GitStatus {
        GitStatus { path: self.path(name) }
    }

    pub(super) fn diff(&self, name: &str) -> GitDiff {
        GitDiff { path: Some(self.path(name)), staged: false, from: None, to: None, file: None, context: 3 }
    }

    /// Returns the reader's answer, which must be the same as git's.
    #[track_caller]
    fn assert_agreement<O: Run + Clone>(&self, operation: &O) -> Option<O::Answer>
    where
        O::Answer: PartialEq + std::fmt::Debug,
    {
        let read = self.answer_without_git(operation);
        if let Some(read) = &read {
            assert_eq!(read, &self.answer_by_git(operation.clone()).unwrap());
        }
        read
    }

    #[track_caller]
    pub(super) fn assert_same_status(&self, name: &str) -> RepositoryStatus {
        self.assert_agreement(&self.status(name)).expect("it was left to git")
    }

    #[track_caller]
    pub(super) fn assert_same_diff(&self, diff: &GitDiff) -> Diff {
        self.assert_agreement(diff).expect("it was left to git")
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

/// How often the reader was asked, how often it answered, and how many of its diffs were those of git in each line.
#[derive(Default)]
struct Counts {
    asked: usize,
    statuses: usize,
    diffs: usize,
    as_git: usize,
}

/// Makes random changes, compares the reader's answers after each with those of git, and returns how many there were.
fn compare_after_random_changes(mut runner: TestRunner) -> Counts {
    let counts = RefCell::new(Counts::default());
    let outcome = runner.run(&prop::collection::vec(event(), 1..25), |events| {
        let fixture = Fixture::new();
        for event in &events {
            apply_event(&fixture, event);
            compare_answers(&fixture, &mut counts.borrow_mut())?;
        }
        Ok(())
    });
    outcome.unwrap();
    counts.into_inner()
}

/// Compares the reader's status and diffs with those of git.
fn compare_answers(fixture: &Fixture, counts: &mut Counts) -> Result<(), TestCaseError> {
    let failure = |error: Error| TestCaseError::fail(error.to_string());
    counts.asked += 1;
    let status = fixture.status("");
    if let Some(read) = fixture.answer_without_git(&status) {
        counts.statuses += 1;
        prop_assert_eq!(read, fixture.answer_by_git(status).map_err(failure)?);
    }
    let staged = GitDiff { staged: true, ..fixture.diff("") };
    let since = GitDiff { from: Some("main".to_owned()), ..fixture.diff("") };
    for diff in [fixture.diff(""), staged, since] {
        if let Some(read) = fixture.answer_without_git(&diff) {
            counts.diffs += 1;
            let expected = fixture.answer_by_git(diff).map_err(failure)?;
            prop_assert_eq!(settled(&read), settled(&expected));
            counts.as_git += usize::from(read == expected);
        } else if let Err(error) = fixture.answer_by_git(diff) {
            // The parser must also understand git's output for the states that the reader leaves to git.
            prop_assert_ne!(error.code(), ErrorCode::Internal, "{}", error);
        }
    }
    Ok(())
}

#[test]
fn status_and_diff_are_those_of_git() {
    let config = ProptestConfig { cases: 16, max_shrink_iters: 200, ..ProptestConfig::default() };
    compare_after_random_changes(TestRunner::new(config));
}

/// The changes are the same in each run: the share that the reader answers differs between random ones.
#[test]
fn most_statuses_and_diffs_are_read_without_git() {
    let config = ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let counts = compare_after_random_changes(TestRunner::new_with_rng(config, rng));
    let share = |read: usize, asked: usize| 100 * read / asked;
    let shares = (share(counts.statuses, counts.asked), share(counts.diffs, 3 * counts.asked));
    assert!(shares.0 > 70 && shares.1 > 45, "in percent: {shares:?}");
    assert!(share(counts.as_git, counts.diffs) > 90, "{} of {}", counts.as_git, counts.diffs);
}

/// The reader answers every step of ordinary work.
#[test]
fn ordinary_changes_are_read_without_git() {
    let fixture = Fixture::new();
    assert!(fixture.assert_same_status("").clean);
    fixture.write("src/main.rs", "fn main() {\n    one();\n    two();\n    three();\n}\n");
    fixture.write("README", "Read me\n");
    fixture.write("target/debug/x", "x");
    fixture.write(".gitignore", "target/\n*.log\n!keep.log\n");
    fixture.write("keep.log", "");
    assert_eq!(fixture.assert_same_status("").untracked.len(), 4);
    fixture.git(&["add", "."]);
    assert_eq!(fixture.assert_same_status("").staged.len(), 4);
    let staged = GitDiff { staged: true, ..fixture.diff("") };
    assert_eq!(fixture.assert_same_diff(&staged).files.len(), 4);
    fixture.commit("First");
    assert!(
        fixture.assert_same_status("").clean && fixture.assert_same_diff(&fixture.diff("")).files.is_empty()
    );
    fixture.write("src/main.rs", "fn main() {\n    one();\n    2();\n    three();\n}\n");
    fixture.write("README", "");
    fs::remove_file(fixture.at("keep.log")).unwrap();
    let status = fixture.assert_same_status("src");
    assert_eq!(status.modified.len(), 3);
    assert_eq!(status.modified[1].change, ChangeKind::Deleted);
    let diff = fixture.assert_same_diff(&fixture.diff(""));
    assert_eq!((diff.files.len(), diff.files[2].additions), (3, 1));
    assert!(diff.diff.contains("@@ -1,5 +1,5 @@\n"), "{}", diff.diff);
    let one = GitDiff { file: Some("src".to_owned()), context: 1, ..fixture.diff("") };
    assert_eq!(fixture.assert_same_diff(&one).files.len(), 1);
    fixture.git(&["commit", "-q", "-a", "-m", "Second"]);
    fixture.git(&["mv", "README", "READ.ME"]);
    let moved = fixture.assert_same_status("");
    assert_eq!(
        (moved.staged[0].change, moved.staged[0].from.as_deref()),
        (ChangeKind::Renamed, Some("README"))
    );
    let between = GitDiff { from: Some("main".to_owned()), to: Some("HEAD".to_owned()), ..fixture.diff("") };
    assert_eq!(fixture.assert_same_diff(&between).files, []);
    // A change in the same second as the index, of the same size.
    fixture.git(&["commit", "-q", "-m", "Third"]);
    for text in ["one\n", "two\n", "six\n"] {
        fixture.write("READ.ME", text);
        fixture.git(&["add", "READ.ME"]);
        fixture.assert_same_status("");
        fixture.write("READ.ME", "ten\n");
        assert_eq!(fixture.assert_same_status("").modified.len(), 1);
        assert_eq!(fixture.assert_same_diff(&fixture.diff("")).files.len(), 1);
    }
}

/// Git detects a rename from the deleted file to the similar one in conflict, and omits the deletion.
#[test]
fn a_deletion_beside_a_similar_file_in_conflict_is_listed() {
    let fixture = Fixture::new();
    fixture.commit("First");
    fixture.write("b.d", CONTENTS[3]);
    fixture.git(&["add", "b.d"]);
    fs::remove_file(fixture.at("b.d")).unwrap();
    conflict(&fixture, "z/z");
    fixture.write("z/z", CONTENTS[4]);
    let status = fixture.assert_same_status("");
    let [deleted] = &status.modified[..] else { panic!("{status:?}") };
    assert_eq!((deleted.path.as_str(), deleted.change), ("b.d", ChangeKind::Deleted));
    assert_eq!(status.conflicted[0].path, "z/z");
    let diff = fixture.answer_by_git(fixture.diff("")).unwrap();
    let expected = [("b.d", ChangeKind::Deleted, 0, 5), ("z/z", ChangeKind::Modified, 5, 1)];
    let files = diff.files.iter().map(|file| (&*file.path, file.change, file.additions, file.deletions));
    assert_eq!(files.collect::<Vec<_>>(), expected);
    assert!(diff.diff.contains("deleted file mode 100644") && diff.diff.contains("+3\n"), "{}", diff.diff);
}

#[test]
fn a_binary_file_is_one_where_its_mode_alone_changed_too() {
    let fixture = Fixture::new();
    fixture.write("file", "a\0b");
    fixture.git(&["add", "."]);
    fs::set_permissions(fixture.at("file"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(fixture.assert_same_diff(&fixture.diff("")).files[0].binary);
    fixture.write("file", "a\0c");
    assert!(
        fixture.assert_same_diff(&fixture.diff("")).diff.ends_with("Binary files a/file and b/file differ\n")
    );
}

#[test]
fn each_kind_of_repository_is_read_or_left_to_git() {
    let fixture = Fixture::new();
    for number in 0..3 {
        fixture.write("file", format!("line {number}\nsame\n"));
        fixture.git(&["add", "."]);
        fixture.commit(&number.to_string());
    }
    let earlier = fixture.git(&["rev-parse", "HEAD~2"]);
    fixture.git(&["tag", "-a", "-m", "Tag", "first", &earlier]);
    let between = GitDiff { from: Some("first".to_owned()), to: Some("main".to_owned()), ..fixture.diff("") };
    assert_eq!(fixture.assert_same_diff(&between).files.len(), 1);
    let staged = GitDiff { from: Some("first".to_owned()), staged: true, ..fixture.diff("") };
    assert_eq!(fixture.assert_same_diff(&staged).files.len(), 1);
    fixture.git(&["clone", "-q", ".", "../root/clone"]);
    fixture.write("clone/new", "");
    // A nested repository is left to git.
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
    let inside = |arguments: &[&str]| fixture.git(&[&["-C", "clone"], arguments].concat());
    inside(&["commit", "-q", "--allow-empty", "-m", "Ahead"]);
    let status = fixture.assert_same_status("clone");
    assert_eq!(
        (status.upstream.as_deref(), status.ahead, status.untracked.len()),
        (Some("origin/main"), Some(1), 1)
    );
    inside(&["worktree", "add", "-q", "../beside", "-b", "beside"]);
    fixture.write("beside/file", "other\n");
    assert_eq!(fixture.assert_same_status("beside").modified.len(), 1);
    assert_eq!(fixture.assert_same_diff(&fixture.diff("beside")).files.len(), 1);
    fixture.git(&["clone", "-q", "--bare", "clone", "bare.git"]);
    assert_eq!(fixture.answer_without_git(&fixture.status("bare.git")), None);
    inside(&["checkout", "-q", "--detach"]);
    fixture.assert_agreement(&fixture.status("clone"));
    inside(&["pack-refs", "--all"]);
    inside(&["gc", "-q"]);
    fixture.assert_agreement(&fixture.status("clone"));
    fixture.git(&[
        "clone",
        "-q",
        "--no-local",
        "--depth",
        "1",
        &format!("file://{}", fixture.at("clone").display()),
        "shallow",
    ]);
    assert_eq!(fixture.answer_without_git(&fixture.status("shallow")), None);
}

#[test]
fn config_and_index_features_are_left_to_git() {
    let fixture = Fixture::new();
    fixture.write("file", "text\n");
    fixture.write("d/other", "text\n");
    fixture.git(&["add", "."]);
    fixture.commit("First");
    fixture.assert_same_status("");
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
        let before = fs::read(fixture.at(".git/config")).unwrap();
        fixture.git(&["config", key, value]);
        assert_eq!(fixture.answer_without_git(&fixture.status("")), None, "{key}");
        assert_eq!(fixture.answer_without_git(&fixture.diff("")), None, "{key}");
        fs::write(fixture.at(".git/config"), before).unwrap();
    }
    let index = fs::read(fixture.at(".git/index")).unwrap();
    for arguments in [
        &["update-index", "--index-version", "4"][..],
        &["update-index", "--assume-unchanged", "file"],
        &["update-index", "--skip-worktree", "file"],
        &["update-index", "--split-index"],
        &["update-index", "--add", "--cacheinfo", "160000,1111111111111111111111111111111111111111,sub"],
        &["add", "-N", "new"],
    ] {
        fixture.write("new", "");
        fixture.git(arguments);
        assert_eq!(fixture.answer_without_git(&fixture.status("")), None, "{arguments:?}");
        fs::write(fixture.at(".git/index"), &index).unwrap();
    }
    fixture.git(&["add", "new"]);
    fixture.assert_same_status("");
}

/// Enough files for several threads.
#[test]
fn files_as_old_as_the_index_are_read() {
    let fixture = Fixture::new();
    let name = |number: usize| format!("d{}/file{number}", number % 7);
    for number in 0..900 {
        fixture.write(&name(number), format!("line\n{number}\n"));
    }
    fixture.git(&["add", "."]);
    fixture.commit("First");
    for number in (0..900).step_by(90) {
        // Of the same length as before.
        fixture.write(&name(number), format!("Line\n{number}\n"));
    }
    // An old index file makes all metadata inconclusive.
    let index = fs::File::open(fixture.at(".git/index")).unwrap();
    index.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(fixture.assert_same_status("").modified.len(), 10);
    assert_eq!(fixture.assert_same_diff(&fixture.diff("")).files.len(), 10);
}

/// Attributes matter only when contents are compared.
#[test]
fn content_conversion_is_left_to_git() {
    let fixture = Fixture::new();
    fixture.write("file", "text\n");
    fixture.write("d/other", "text\n");
    fixture.git(&["add", "."]);
    fixture.commit("First");
    fixture.write("d/.gitattributes", "other ident\n* text=auto\n");
    fixture.write("d/other", "more\n");
    assert_eq!(fixture.answer_without_git(&fixture.diff("")), None);
    // The content is the same, but git might convert it.
    fixture.write("d/other", "text\n");
    assert_eq!(fixture.answer_without_git(&fixture.diff("")), None);
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
    fixture.write("d/.gitattributes", "nothing ident\n* text=auto\n");
    fixture.write("file", "next\n");
    assert_eq!(fixture.assert_same_diff(&fixture.diff("")).files.len(), 1);
    fixture.write("file", "tex\r\n");
    fixture.write(".gitattributes", "file text\n");
    assert_eq!(fixture.answer_without_git(&fixture.diff("")), None);
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
    fixture.write(".gitattributes", "file diff=rust\n");
    assert_eq!(fixture.answer_without_git(&fixture.diff("")), None);
}
