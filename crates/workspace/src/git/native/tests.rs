//! Compares the reader's answers with those of git.

mod changes;
mod hostile;
mod limits;
mod objects;
mod patches;
mod process;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use proptest::prelude::*;
use rustix::fs::{CWD, Mode, mkfifoat};
use skep_api::{
    AbsolutePath,
    git::{Branches, GitBranches, GitLog, Log},
    path::PathEncoding,
};
use tempfile::TempDir;

use super::*;
use crate::{Fence, Run, held_work::HeldWork};

/// A folder with repositories, and two workspaces: the fenced one always uses git.
struct Fixture {
    folder: TempDir,
    place: Place,
    fenced: Place,
    runtime: tokio::runtime::Runtime,
}

impl Fixture {
    /// Creates an empty repository.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let place = Place::new(&root, &root, BTreeMap::new(), "/nowhere");
        let by_git = place.for_account(vec![root], Fence::new(None));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fixture = Self { folder, place, fenced: by_git, runtime };
        fixture.git(&["init", "-q", "-b", "main", "."]);
        fixture
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    #[track_caller]
    fn git(&self, arguments: &[&str]) -> String {
        self.git_at(1_700_000_000, arguments)
    }

    #[track_caller]
    fn git_at(&self, seconds: u64, arguments: &[&str]) -> String {
        let output = self.try_git(seconds, arguments);
        assert!(output.status.success(), "git {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn try_git(&self, seconds: u64, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(self.at("")).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent").env("GIT_MERGE_AUTOEDIT", "no");
        let date = format!("{seconds} +0100");
        for who in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{who}_NAME"), "Ada L.")
                .env(format!("GIT_{who}_EMAIL"), "ada@example.com");
            command.env(format!("GIT_{who}_DATE"), &date);
        }
        command.output().unwrap()
    }

    fn commit(&self, message: &str) -> String {
        self.git(&[
            "commit",
            "-q",
            "--allow-empty",
            "--cleanup=verbatim",
            "--allow-empty-message",
            "-m",
            message,
        ]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn path(&self, name: &str) -> AbsolutePath {
        AbsolutePath::parse("path", self.at(name).to_str().unwrap(), PathEncoding::Plain).unwrap()
    }

    fn log(&self, name: &str, revision: Option<&str>, limit: u32, cursor: Option<String>) -> GitLog {
        let revision = revision.map(str::to_owned);
        GitLog { path: Some(self.path(name)), revision, file: None, limit, cursor }
    }

    fn branches(&self, name: &str) -> GitBranches {
        GitBranches { path: Some(self.path(name)), remote: true }
    }

    /// Answers without git.
    fn answer_without_git<O: Run>(&self, operation: &O) -> Option<O::Answer> {
        self.runtime.block_on(operation.run_without_programs(&self.place))
    }

    /// Answers by git.
    fn answer_by_git<O: Run>(&self, operation: O) -> Result<O::Answer, Error> {
        self.runtime.block_on(operation.run(&self.fenced))
    }

    /// Both answers must be the same, and the reader must be able to give one.
    #[track_caller]
    fn assert_same_log(&self, name: &str, revision: Option<&str>, limit: u32) -> Log {
        let mut cursor = None;
        loop {
            let log = self.answer_without_git(&self.log(name, revision, limit, cursor.clone()));
            let expected = self.answer_by_git(self.log(name, revision, limit, cursor)).unwrap();
            assert_eq!(log.as_ref(), Some(&expected), "{name} {revision:?}");
            cursor = expected.next_cursor.clone();
            if cursor.is_none() {
                return expected;
            }
        }
    }

    #[track_caller]
    fn assert_same_branches(&self, name: &str) -> Branches {
        let branches = self.answer_without_git(&self.branches(name));
        let branches = branches.unwrap_or_else(|| panic!("{name}: the reader left the branches to git"));
        let expected = self.answer_by_git(self.branches(name)).unwrap();
        assert_eq!(branches, expected, "{name}");
        expected
    }

    /// The reader must leave the operation to git.
    #[track_caller]
    fn assert_left_to_git(&self, why: &str) {
        assert_eq!(self.answer_without_git(&self.log("", None, 10, None)), None, "{why}");
    }
}

/// A random change to a repository.
#[derive(Debug, Clone)]
enum Step {
    Commit { message: String, later: i64 },
    Branch(u8),
    Checkout(u8),
    Merge(Vec<u8>),
    Tag(u8, bool),
    Follow(u8, u8),
    Pack,
    PackReferences,
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let message = "(\n)?[ -~é\t]{0,12}(\n[ -~]{0,6}){0,4}(\r\n)?\n{0,2}";
    prop_oneof![
        6 => (message, -3_i64..10).prop_map(|(message, later)| Step::Commit { message, later }),
        2 => (0..5_u8).prop_map(Step::Branch),
        2 => (0..5_u8).prop_map(Step::Checkout),
        3 => prop::collection::vec(0..5_u8, 1..3).prop_map(Step::Merge),
        1 => (0..3_u8, any::<bool>()).prop_map(|(name, annotated)| Step::Tag(name, annotated)),
        2 => (0..5_u8, 0..5_u8).prop_map(|(branch, upstream)| Step::Follow(branch, upstream)),
        1 => Just(Step::Pack),
        1 => Just(Step::PackReferences),
        1 => (0..5_u8).prop_map(Step::Delete),
    ]
}

/// Applies a step; impossible ones have no effect.
fn apply_step(fixture: &Fixture, step: &Step, now: &mut i64, serial: usize) {
    let seconds = u64::try_from(*now).unwrap();
    let run = |arguments: &[&str]| drop(fixture.try_git(seconds, arguments));
    let branch = |number: &u8| format!("b/{number}");
    match step {
        Step::Commit { message, later } => {
            *now += later;
            fs::write(fixture.at(&format!("file{}", serial % 3)), format!("{serial}\n{message}")).unwrap();
            run(&["add", "."]);
            run(&[
                "commit",
                "-q",
                "--cleanup=verbatim",
                "--allow-empty-message",
                "--allow-empty",
                "-m",
                message,
            ]);
        }
        Step::Branch(number) => run(&["branch", &branch(number)]),
        Step::Checkout(4) => run(&["checkout", "-q", "--detach"]),
        Step::Checkout(number) => run(&["checkout", "-q", &branch(number)]),
        Step::Merge(others) => {
            let others: Vec<_> = others.iter().map(branch).collect();
            let arguments = ["merge", "-q", "-s", "ours", "--no-ff", "-m", "Join"];
            run(&arguments.into_iter().chain(others.iter().map(String::as_str)).collect::<Vec<_>>());
        }
        Step::Tag(number, true) => run(&["tag", "-f", "-a", "-m", "Tag", &format!("t{number}")]),
        Step::Tag(number, false) => run(&["tag", "-f", &format!("t{number}")]),
        Step::Follow(one, other) => run(&["branch", "-u", &branch(other), &branch(one)]),
        Step::Pack => run(&["gc", "-q"]),
        Step::PackReferences => run(&["pack-refs", "--all"]),
        Step::Delete(number) => run(&["branch", "-q", "-D", &branch(number)]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 60, ..ProptestConfig::default() })]

    /// Random histories: merges, tags, packs, a detached head, dates that go back.
    #[test]
    fn answers_are_those_of_git(steps in prop::collection::vec(step(), 1..24), limit in 1..6_u32) {
        let fixture = Fixture::new();
        let mut now = 1_700_000_000;
        for (serial, step) in steps.iter().enumerate() {
            apply_step(&fixture, step, &mut now, serial);
        }
        fixture.assert_same_log("", None, limit);
        fixture.assert_same_branches("");
        for revision in ["HEAD", "main", "b/1", "t0", "t1", "refs/heads/b/2", "heads/b/0", "tags/t2"] {
            if fixture.try_git(0, &["rev-parse", "-q", "--verify", &format!("{revision}^{{commit}}")]).status.success() {
                fixture.assert_same_log("", Some(revision), limit);
            }
        }
        fixture.git(&["clone", "-q", "--bare", ".", "bare.git"]);
        fixture.git(&["clone", "-q", ".", "clone"]);
        fixture.assert_same_branches("bare.git");
        fixture.assert_same_log("bare.git", None, limit);
        fixture.assert_same_branches("clone");
        fixture.assert_same_log("clone", None, limit);
    }
}

#[test]
fn a_clone_knows_how_far_it_is_from_its_remote() {
    let fixture = Fixture::new();
    for number in 0..4 {
        fixture.commit(&number.to_string());
    }
    fixture.git(&["clone", "-q", ".", "clone"]);
    fixture.commit("theirs");
    let inside = |arguments: &[&str]| fixture.git(&[&["-C", "clone"], arguments].concat());
    inside(&["commit", "-q", "--allow-empty", "-m", "ours"]);
    inside(&["commit", "-q", "--allow-empty", "-m", "ours too"]);
    inside(&["fetch", "-q"]);
    inside(&["branch", "-q", "--track", "gone", "origin/main"]);
    inside(&["config", "branch.gone.merge", "refs/heads/never"]);
    inside(&["worktree", "add", "-q", "../beside", "-b", "beside"]);
    let branches = fixture.assert_same_branches("clone");
    let main = branches.branches.iter().find(|one| one.name == "main").unwrap();
    assert_eq!((main.upstream.as_deref(), main.ahead, main.behind), (Some("origin/main"), Some(2), Some(1)));
    let gone = branches.branches.iter().find(|one| one.name == "gone").unwrap();
    assert_eq!((gone.upstream.as_deref(), gone.ahead), (Some("origin/never"), None));
    assert_eq!(fixture.assert_same_branches("beside").current.as_deref(), Some("beside"));
    assert_eq!(fixture.assert_same_log("beside", None, 2).commits.len(), 2);
    // An ambiguous short name is left to git.
    inside(&["tag", "origin/main"]);
    assert_eq!(fixture.answer_without_git(&fixture.branches("clone")), None);
}

#[test]
fn an_empty_repository_has_no_commits_and_a_branch() {
    let fixture = Fixture::new();
    assert_eq!(fixture.assert_same_log("", None, 5).commits, []);
    assert_eq!(fixture.assert_same_branches("").current.as_deref(), Some("main"));
    assert_eq!(fixture.answer_without_git(&fixture.log("", Some("main"), 5, None)), None);
}

/// Commits that no current git writes by itself.
#[test]
fn odd_commits_are_read_as_git_reads_them_or_not_at_all() {
    let fixture = Fixture::new();
    fixture.commit("First");
    let tree = fixture.git(&["write-tree"]);
    let person = "A <a@b> 1700000001 +0000";
    let head =
        |author: &str, committer: &str| format!("tree {tree}\nauthor {author}\ncommitter {committer}\n");
    let signed = head(person, person) + "gpgsig -----BEGIN\n \n author x\n\nSigned\n";
    let continued =
        head(person, person) + "mergetag object x\n type commit\n\n\n \t\nLine\nmore\r\n\n\nbody \n\n";
    let bytes = [head(person, person).as_bytes(), b"\n\xff\xfe line\n\nb\xff\n"].concat();
    for content in [signed.as_bytes(), continued.as_bytes(), &bytes, head(person, person).as_bytes()] {
        fs::write(fixture.at("raw"), content).unwrap();
        let id = fixture.git(&["hash-object", "-w", "-t", "commit", "--literally", "raw"]);
        let log = fixture.answer_without_git(&fixture.log("", Some(&id), 5, None));
        if let Some(log) = log {
            assert_eq!(log, fixture.answer_by_git(fixture.log("", Some(&id), 5, None)).unwrap());
        } else {
            assert_eq!(content, head(person, person).as_bytes());
        }
    }
    let encoded = head(person, person) + "encoding latin1\n\nx\n";
    for content in [encoded, head("<a@b> 1 +0000", person), head(person, "A <a@b>") + "\nx\n"] {
        fs::write(fixture.at("raw"), content).unwrap();
        let id = fixture.git(&["hash-object", "-w", "-t", "commit", "--literally", "raw"]);
        assert_eq!(fixture.answer_without_git(&fixture.log("", Some(&id), 5, None)), None);
    }
}

#[test]
fn special_object_stores_and_config_are_left_to_git() {
    let fixture = Fixture::new();
    let first = fixture.commit("First");
    let second = fixture.commit("Second");
    fixture.assert_same_log("", None, 5);
    for (name, content) in [
        ("objects/info/alternates", "/nowhere\n"),
        ("info/grafts", "\n"),
        ("shallow", second.as_str()),
        ("config.worktree", ""),
    ] {
        let path = fixture.at(".git").join(name);
        fs::write(&path, content).unwrap();
        fixture.assert_left_to_git(name);
        fs::remove_file(path).unwrap();
    }
    fixture.git(&["replace", &first, &second]);
    fixture.assert_left_to_git("replaced");
    fixture.git(&["pack-refs", "--all"]);
    fixture.assert_left_to_git("replaced, packed");
    fixture.git(&["replace", "-d", &first]);
    fixture.assert_same_log("", None, 5);
    for setting in ["extensions.objectformat", "core.repositoryformatversion", "include.path"] {
        let before = fs::read(fixture.at(".git/config")).unwrap();
        fixture.git(&["config", setting, "3"]);
        fixture.assert_left_to_git(setting);
        fs::write(fixture.at(".git/config"), before).unwrap();
    }
    for revision in ["HEAD~1", "@", "main@{0}", ":/First", "nothing", &first[..10], "--all", "config"] {
        assert_eq!(fixture.answer_without_git(&fixture.log("", Some(revision), 5, None)), None, "{revision}");
    }
    let file = GitLog { file: Some("x".to_owned()), ..fixture.log("", None, 5, None) };
    assert_eq!(fixture.answer_without_git(&file), None);
    fixture.assert_same_log("", None, 5);
}

/// Opening a FIFO would block, and a link may lead outside.
#[test]
fn special_files_and_files_outside_the_roots_are_not_read() {
    let fixture = Fixture::new();
    let first = fixture.commit("First");
    let git = fixture.at(".git");
    let outside = fixture.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let swap = |name: &str, put: &dyn Fn(&Path)| {
        let (path, aside) = (git.join(name), fixture.folder.path().join("aside"));
        fixture.assert_same_log("", None, 5);
        fs::rename(&path, &aside).unwrap();
        put(&path);
        fixture.assert_left_to_git(name);
        if path.is_dir() && !path.is_symlink() { fs::remove_dir(&path) } else { fs::remove_file(&path) }
            .unwrap();
        fs::rename(&aside, &path).unwrap();
    };
    let fifo = |path: &Path| mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
    let object = format!("objects/{}", &first[..2]);
    for name in ["refs/heads/main", "HEAD", "config", &format!("{object}/{}", &first[2..])] {
        swap(name, &fifo);
    }
    // The same files, moved outside the roots.
    for name in ["refs/heads", "refs", "objects", &object] {
        let aside = fixture.folder.path().join("aside");
        swap(name, &|path| symlink(&aside, path).unwrap());
    }
    fixture.git(&["gc", "-q"]);
    let packs: Vec<_> =
        fs::read_dir(git.join("objects/pack")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for name in packs.iter().filter_map(|name| name.to_str()).filter(|name| !name.ends_with(".rev")) {
        swap(&format!("objects/pack/{name}"), &fifo);
    }
    swap("packed-refs", &fifo);
}

/// A damaged pack must not cause anything but a refusal.
#[test]
fn a_pack_that_is_broken_or_cut_short_is_not_read() {
    let fixture = Fixture::new();
    for number in 0..20 {
        fs::write(fixture.at("file"), "line\n".repeat(100 + number)).unwrap();
        fixture.git(&["add", "."]);
        fixture.commit(&format!("Change {number}\n\n{}", "The same reason as ever, at length.\n".repeat(20)));
    }
    fixture.git(&["gc", "-q", "--aggressive"]);
    fixture.assert_same_log("", None, 30);
    let folder = fixture.at(".git/objects/pack");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> =
        names.filter(|path| path.extension().is_some_and(|end| end == "idx" || end == "pack")).collect();
    assert_eq!(files.len(), 2);
    let mut refused = 0;
    for path in &files {
        let content = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        for at in (0..content.len()).step_by(content.len() / 150 + 1) {
            for broken in
                [content[..at].to_vec(), [&content[..at], &[content[at] ^ 0x5f], &content[at + 1..]].concat()]
            {
                fs::write(path, broken).unwrap();
                refused +=
                    usize::from(fixture.answer_without_git(&fixture.log("", None, 30, None)).is_none());
            }
        }
        fs::write(path, content).unwrap();
    }
    assert!(refused > 100, "{refused}");
    fixture.assert_same_log("", None, 30);
}

/// A reading keeps its permit until its thread ends, even if the caller has left.
#[test]
fn no_more_readings_than_permits_run_at_once_also_for_callers_that_have_left() {
    let fixture = Fixture::new();
    let permits = READ_PERMITS.available_permits();
    let (release, held) = HeldWork::new();
    let reading = || {
        let (place, path, held) = (fixture.place.clone(), fixture.path(""), held.clone());
        tokio::spawn(async move {
            let work = move |_: &mut Reader<'_>| {
                held.begin_and_wait();
                Some(())
            };
            read(&place, Some(&path), work).await
        })
    };
    fixture.runtime.block_on(async {
        let abandoned: Vec<_> = (0..permits + 2).map(|_| reading()).collect();
        skep_harness::eventually("readings", async || held.begun() == permits).await;
        for reading in abandoned {
            reading.abort();
            assert!(reading.await.unwrap_err().is_cancelled());
        }
        assert_eq!(READ_PERMITS.available_permits(), 0);
        let next = reading();
        release.send(()).unwrap();
        skep_harness::eventually("the next reading", async || held.begun() == permits + 1).await;
        drop(release);
        assert_eq!(next.await.unwrap(), Some(()));
    });
}
