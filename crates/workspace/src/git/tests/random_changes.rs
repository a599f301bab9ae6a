//! Status and diff after random changes, beside the lists of other commands of git.

use std::{
    collections::BTreeSet,
    os::unix::fs::{PermissionsExt, symlink},
};

use proptest::{prelude::*, test_runner::TestCaseError};
use skep_api::git::{ChangedPath, FilePath};

use super::*;

/// File names, some of them unusual.
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
pub(super) const CONTENTS: [&[u8]; 9] = [
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
pub(super) fn conflict(fixture: &Fixture, name: &str) {
    let blob = |content: &str| {
        fs::write(fixture.folder.path().join("blob"), content).unwrap();
        fixture.git(&["hash-object", "-w", "../blob"])
    };
    let (one, other) = (blob("one"), blob("other"));
    let _ = fixture.try_git(0, &["update-index", "--force-remove", "--", name]);
    let stages = format!("100644 {one} 2\t{name}\0100644 {other} 3\t{name}\0");
    // It fails where the index is locked.
    let _ = fixture.try_git_with_input(&["update-index", "-z", "--index-info"], &stages);
}

impl Fixture {
    /// The fields that plain git prints, which zero bytes separate.
    fn listed(&self, arguments: &[&str]) -> Vec<String> {
        let output = self.try_git(0, arguments).stdout;
        let fields = output.split(|byte| *byte == 0).filter(|field| !field.is_empty());
        fields.map(|field| String::from_utf8(field.to_vec()).unwrap()).collect()
    }

    /// The paths that plain git lists, without the files in conflict.
    fn compared(&self, arguments: &[&str], conflicted: &BTreeSet<String>) -> BTreeSet<String> {
        let options = ["diff", "--name-only", "--no-renames", "-z"];
        let names = self.listed(&[&options, arguments].concat());
        names.into_iter().filter(|name| !conflicted.contains(name)).collect()
    }
}

/// All paths of these changes: of a renamed file both.
fn paths_of(changes: &[ChangedPath]) -> BTreeSet<String> {
    changes.iter().flat_map(|file| [Some(file.path.clone()), file.from.clone()]).flatten().collect()
}

fn names_of(files: &[FilePath]) -> BTreeSet<String> {
    files.iter().map(|file| file.path.clone()).collect()
}

/// Compares status and diffs with the lists of other commands of git.
fn compare_changes(fixture: &Fixture) -> Result<(), TestCaseError> {
    let failure = |error: Error| TestCaseError::fail(error.to_string());
    let status = fixture.try_answer(fixture.status("")).map_err(failure)?;
    let untracked = fixture.listed(&["ls-files", "--others", "--exclude-standard", "-z"]);
    prop_assert_eq!(names_of(&status.untracked), untracked.into_iter().collect());
    let unmerged = fixture.listed(&["ls-files", "--unmerged", "-z"]);
    let conflicted = unmerged.iter().map(|line| line.split_once('\t').unwrap().1.to_owned()).collect();
    prop_assert_eq!(&names_of(&status.conflicted), &conflicted);
    prop_assert_eq!(paths_of(&status.staged), fixture.compared(&["--cached"], &conflicted));
    prop_assert_eq!(paths_of(&status.modified), fixture.compared(&[], &conflicted));
    for staged in [false, true] {
        let diff = fixture.try_answer(GitDiff { staged, ..fixture.diff("") }).map_err(failure)?;
        let paths = diff.files.iter().flat_map(|file| [Some(file.path.clone()), file.from.clone()]);
        let paths = paths.flatten().filter(|path| !conflicted.contains(path)).collect::<BTreeSet<_>>();
        prop_assert_eq!(&paths, &paths_of(if staged { &status.staged } else { &status.modified }));
        prop_assert_eq!(diff.diff.is_empty(), diff.files.is_empty());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_time: 60_000, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_those_of_other_commands_of_git(events in prop::collection::vec(event(), 1..25)) {
        let fixture = Fixture::new();
        for event in &events {
            apply_event(&fixture, event);
            compare_changes(&fixture)?;
        }
    }
}
