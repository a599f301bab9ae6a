//! What is changed in a work tree, as it is read here and as git says it.

use std::{cell::Cell, os::unix::fs::PermissionsExt};

use proptest::test_runner::{TestCaseError, TestRunner};
use skep_api::git::{ChangeKind, Diff, GitDiff, GitStatus, RepositoryStatus};

use super::*;

/// Names that files have here, some of them odd.
const NAMES: [&str; 12] = [
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

/// Something that happens to files, or to what git knows of them.
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

/// Lets it happen, where it can.
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

/// Two sides of a file meet in the index.
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
    fn status(&self, name: &str) -> GitStatus {
        GitStatus { path: self.path(name) }
    }

    fn diff(&self, name: &str) -> GitDiff {
        GitDiff { path: Some(self.path(name)), staged: false, from: None, to: None, file: None, context: 3 }
    }

    /// Whether it was read here; what was read is what git says.
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
    fn same_status(&self, name: &str) -> RepositoryStatus {
        self.agree(&self.status(name)).expect("it was left to git")
    }

    #[track_caller]
    fn same_diff(&self, diff: &GitDiff) -> Diff {
        self.agree(diff).expect("it was left to git")
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// Whatever happens, what is read here is what git says; and most of it is read here.
#[test]
fn what_is_changed_is_what_git_says() {
    let (asked, statuses, diffs) = (Cell::new(0), Cell::new(0), Cell::new(0));
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
                    prop_assert_eq!(read, said);
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let share = |read: &Cell<usize>, asked: usize| 100 * read.get() / asked;
    let told = (share(&statuses, asked.get()), share(&diffs, 3 * asked.get()));
    assert!(told.0 > 70 && told.1 > 40, "in percent: {told:?}");
}

/// The ordinary work of a day, each step of which is read here.
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
    // In the same second as the index, of the same size.
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
    // A repository in a repository is git's to tell.
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

/// Attributes matter once a content is compared.
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
    ground.write("d/other", "text\n");
    ground.write("file", "next\n");
    assert_eq!(ground.same_diff(&ground.diff("")).files.len(), 1);
    ground.write("file", "tex\r\n");
    ground.write(".gitattributes", "file text\n");
    assert_eq!(ground.read(&ground.diff("")), None);
    assert_eq!(ground.read(&ground.status("")), None);
    ground.write(".gitattributes", "file diff=rust\n");
    assert_eq!(ground.read(&ground.diff("")), None);
}

/// Whatever stands in the index, it is read or not, and nothing else happens.
#[test]
fn an_index_that_is_broken_or_cut_short_is_survived() {
    let ground = Ground::new();
    for name in NAMES {
        ground.write(name, "text\n");
        if ground.tried(0, &["add", "-A"]).status.success() {
            let _ = ground.tried(0, &["commit", "-q", "-m", "Change"]);
        }
        if matches!(name, "b.txt") {
            ground.write("b/.gitignore", "x\n");
        }
    }
    ground.same_status("");
    let path = ground.at(".git/index");
    let index = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..index.len()).step_by(3) {
        for broken in [index[..at].to_vec(), [&index[..at], &[index[at] ^ 0x51], &index[at + 1..]].concat()] {
            fs::write(&path, broken).unwrap();
            refused += usize::from(ground.read(&ground.status("")).is_none());
            ground.read(&ground.diff(""));
        }
    }
    assert!(refused > index.len() / 3, "{refused}");
    fs::write(&path, &index).unwrap();
    ground.same_status("");
    fs::remove_file(&path).unwrap();
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    assert_eq!(ground.read(&ground.status("")), None);
    fs::remove_file(&path).unwrap();
    let outside = ground.folder.path().join("outside");
    fs::write(&outside, &index).unwrap();
    symlink(&outside, &path).unwrap();
    assert_eq!(ground.read(&ground.status("")), None);
}

/// Names in an index that lead elsewhere, and folders that were exchanged for links.
#[test]
fn nothing_outside_is_looked_at() {
    let ground = Ground::new();
    ground.write("d/file", "text\n");
    ground.git(&["add", "."]);
    ground.commit("First");
    let outside = ground.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::rename(ground.at("d/file"), outside.join("file")).unwrap();
    fs::remove_dir(ground.at("d")).unwrap();
    symlink(&outside, ground.at("d")).unwrap();
    let status = ground.same_status("");
    assert_eq!((status.modified[0].change, status.untracked.len()), (ChangeKind::Deleted, 1));
    let path = ground.at(".git/index");
    let index = fs::read(&path).unwrap();
    let at = index.windows(6).position(|window| window == b"d/file").unwrap();
    for name in [b"../fil", b".git/f", b"d/../f", b"/dfile", b"./file"] {
        fs::write(&path, [&index[..at], name, &index[at + 6..]].concat()).unwrap();
        assert_eq!(ground.read(&ground.status("")), None, "{name:?}");
    }
}

#[test]
fn trees_without_end_and_deep_folders_are_left_to_git() {
    let ground = Ground::new();
    ground.write("d/d/d", "text\n");
    ground.git(&["add", "."]);
    ground.commit("First");
    ground.same_status("");
    // A tree that holds itself twice, under the name of the true one.
    let tree = ground.git(&["rev-parse", "HEAD^{tree}"]);
    let id = data_encoding::HEXLOWER.decode(tree.as_bytes()).unwrap();
    let names = [b"40000 a\0".as_slice(), &id, b"40000 d\0", &id].concat();
    let content = [format!("tree {}\0", names.len()).as_bytes(), &names].concat();
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, &content).unwrap();
    let file = ground.at(".git/objects").join(&tree[..2]).join(&tree[2..]);
    fs::remove_file(&file).unwrap();
    fs::write(file, packed.finish().unwrap()).unwrap();
    ground.git(&["update-index", "--force-remove", "d/d/d"]);
    assert_eq!(ground.read(&ground.status("")), None);
    let ground = Ground::new();
    fs::create_dir_all(ground.at(&"d/".repeat(300))).unwrap();
    assert_eq!(ground.read(&ground.status("")), None);
}

/// Texts and what became of them: some lines stand more than once.
fn texts() -> impl Strategy<Value = (String, String)> {
    let line = || prop_oneof![2 => "[a-e]", 3 => "[ \\t]{0,2}[a-z_$]{1,12}( [a-zé]{1,90})?", 1 => "\\}?"];
    let edit = (any::<prop::sample::Index>(), 0..3_usize, prop::collection::vec(line(), 0..4));
    let ends = (any::<bool>(), any::<bool>());
    (prop::collection::vec(line(), 0..60), prop::collection::vec(edit, 0..5), ends).prop_map(
        |(old, edits, ends)| {
            let mut new = old.clone();
            for (place, gone, more) in edits {
                let at = place.index(new.len() + 1);
                let end = (at + gone).min(new.len());
                new.splice(at..end, more);
            }
            let text = |lines: &[String], end: bool| {
                lines.join("\n") + if end && !lines.is_empty() { "\n" } else { "" }
            };
            (text(&old, ends.0), text(&new, ends.1))
        },
    )
}

/// What is told of two texts is what git tells; and of many it is told.
#[test]
fn patches_are_what_git_writes() {
    let (asked, told) = (Cell::new(0), Cell::new(0));
    let folder = tempfile::tempdir().unwrap();
    let config = ProptestConfig { cases: 400, max_shrink_iters: 2_000, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&(texts(), 1..5_usize), |((old, new), context)| {
        if old == new {
            return Ok(());
        }
        asked.set(asked.get() + 1);
        let file = |content, byte| patch::File {
            side: staged::Side { mode: 0o100_644, id: Id::of([byte; 20]) },
            short: "1".to_owned(),
            content,
        };
        let compared = patch::Compared {
            path: b"new",
            old: Some(file(old.as_bytes(), 1)),
            new: Some(file(new.as_bytes(), 2)),
            nothing: "0",
        };
        let mut patch = Vec::new();
        let Some(counts) = compared.write(context, &mut patch) else { return Ok(()) };
        told.set(told.get() + 1);
        fs::write(folder.path().join("old"), &old).unwrap();
        fs::write(folder.path().join("new"), &new).unwrap();
        let mut git = Command::new("git");
        git.args(["diff", "--no-index", "--no-color", &format!("-U{context}"), "old", "new"]);
        let said = git.current_dir(&folder).env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
        let body = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.find("\n@@ ").map(|at| text[at..].to_owned())
        };
        prop_assert_eq!(body(&patch), body(&said.stdout));
        let signs = |sign: &str| {
            body(&patch).unwrap_or_default().lines().filter(|line| line.starts_with(sign)).count()
        };
        prop_assert_eq!((counts.additions, counts.deletions), (signs("+") as u64, signs("-") as u64));
        Ok(())
    });
    outcome.unwrap();
    assert!(3 * told.get() > asked.get(), "{} of {}", told.get(), asked.get());
}
