//! Damaged and hostile repositories: each is refused or read within limits of time and memory.

use std::{
    os::unix::fs::symlink,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
use skep_api::ErrorCode;
use skep_harness::eventually;

use super::{super::program::PATH, *};

/// Far above what an answer takes, and below the time limit of a git.
const SOON: Duration = Duration::from_secs(60);

impl Fixture {
    /// A repository with a packed history and changes.
    fn with_packed_history() -> Self {
        let fixture = Self::new();
        for number in 0..20 {
            fixture.write("file", "line\n".repeat(100 + number));
            fixture.git(&["add", "."]);
            fixture.commit(&format!("Change {number}\n\n{}", "The same reason, at length.\n".repeat(20)));
        }
        fixture.git(&["gc", "-q", "--aggressive"]);
        fixture.write("file", "changed\n");
        fixture
    }

    /// The pack and its index.
    fn pack_files(&self) -> [PathBuf; 2] {
        let names = fs::read_dir(self.at(".git/objects/pack")).unwrap().map(|entry| entry.unwrap().path());
        let paths = names.collect::<Vec<_>>();
        ["pack", "idx"].map(|end| {
            paths.iter().find(|path| path.extension().is_some_and(|found| found == end)).unwrap().clone()
        })
    }

    /// Runs the operations that read, and returns their errors. None may last, fail without a reason, or fail as if skep itself
    /// had a fault.
    fn errors(&self) -> Vec<Error> {
        let begun = Instant::now();
        let errors = [
            self.try_answer(self.log("")).err(),
            self.try_answer(self.branches("")).err(),
            self.try_answer(self.status("")).err(),
            self.try_answer(self.diff("")).err(),
            self.try_answer(GitDiff { from: Some("HEAD~5".to_owned()), ..self.diff("") }).err(),
        ];
        let errors: Vec<_> = errors.into_iter().flatten().collect();
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        for error in &errors {
            assert_ne!(error.code(), ErrorCode::Internal, "{error}");
            assert_ne!(error.to_string(), "git refused: ");
        }
        errors
    }

    /// Damages this file at some twenty places: cuts it there, or changes a byte. Returns how many reads were refused.
    fn refusals_of_damaged(&self, path: &Path) -> usize {
        let content = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        let mut refused = 0;
        for at in (0..content.len()).step_by(content.len() / 20 + 1) {
            let changed = [&content[..at], &[content[at] ^ 0x51], &content[at + 1..]].concat();
            for damaged in [&content[..at], &changed] {
                fs::write(path, damaged).unwrap();
                refused += self.errors().len();
            }
        }
        fs::write(path, content).unwrap();
        refused
    }
}

#[test]
fn damaged_indexes_and_packs_are_refused_or_read() {
    let fixture = Fixture::with_packed_history();
    let [pack, pack_index] = fixture.pack_files();
    for path in [pack, pack_index, fixture.at(".git/index")] {
        assert!(fixture.errors().is_empty(), "the control: {:?}", fixture.errors());
        assert!(fixture.refusals_of_damaged(&path) > 5, "{path:?}");
    }
    assert!(fixture.errors().is_empty(), "{:?}", fixture.errors());
}

/// A file of 1 GB, which takes 1 MB in its pack. Git reads such files in pieces.
#[test]
fn a_file_of_a_gigabyte_takes_little_time_and_memory() {
    let fixture = Fixture::with_packed_history();
    fixture.write("large", "");
    fs::OpenOptions::new().write(true).open(fixture.at("large")).unwrap().set_len(1 << 30).unwrap();
    fixture.git(&["-c", "core.compression=1", "add", "large"]);
    fixture.commit("Large");
    fixture.write("large", "small\n");
    assert!(fixture.errors().is_empty(), "{:?}", fixture.errors());
    // The same operations with a quarter of a gigabyte for data, and as a control with less than git needs.
    let complaints = |kilobytes: u64, arguments: &str| {
        let mut shell = Command::new("sh");
        let line = format!("ulimit -d {kilobytes} && exec git {arguments}");
        shell.args(["-c", &line]).current_dir(fixture.at("")).env_clear();
        shell.envs([("PATH", PATH), ("HOME", "/nonexistent"), ("LC_ALL", "C"), ("GIT_CONFIG_NOSYSTEM", "1")]);
        String::from_utf8(shell.stderr(Stdio::piped()).output().unwrap().stderr).unwrap()
    };
    for arguments in ["status", "diff", "diff HEAD~5", "log"] {
        assert_eq!(complaints(256 << 10, arguments), "", "{arguments}");
    }
    let enforced = complaints(256 << 10, "-c core.bigFileThreshold=2g diff");
    assert!(enforced.contains("memory"), "the control: {enforced}");
}

/// Files that git opens by these names.
const OPENED_BY_NAME: [&str; 33] = [
    "AUTO_MERGE",
    "BISECT_LOG",
    "BISECT_START",
    "CHERRY_PICK_HEAD",
    "COMMIT_EDITMSG",
    "HEAD",
    "MERGE_HEAD",
    "ORIG_HEAD",
    "REVERT_HEAD",
    "config",
    "config.worktree",
    "index",
    "info/attributes",
    "info/exclude",
    "info/grafts",
    "info/sparse-checkout",
    "logs/HEAD",
    "objects",
    "objects/info/alternates",
    "objects/info/commit-graph",
    "objects/info/commit-graphs/commit-graph-chain",
    "objects/pack",
    "objects/pack/multi-pack-index",
    "packed-refs",
    "rebase-apply/head-name",
    "rebase-apply/onto",
    "rebase-merge/head-name",
    "rebase-merge/onto",
    "refs",
    "refs/stash",
    "reftable/tables.list",
    "sequencer/todo",
    "shallow",
];

/// Git would open a FIFO and wait for a writer until its time limit.
#[test]
fn fifos_and_sockets_are_refused_at_once() {
    let fixture = Fixture::with_packed_history();
    let aside = fixture.folder.path().join("aside");
    for name in OPENED_BY_NAME {
        let path = fixture.at(".git").join(name);
        let is_there = path.exists();
        if is_there {
            fs::rename(&path, &aside).unwrap();
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let refused = fixture.try_answer(fixture.status("")).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::HostileRepository, "{name}: {refused}");
        fs::remove_file(&path).unwrap();
        if is_there {
            fs::rename(&aside, &path).unwrap();
        }
    }
    let socket = fixture.at(".git/index");
    fs::rename(&socket, &aside).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let refused = fixture.try_answer(fixture.status("")).unwrap_err();
    assert_eq!(refused.to_string(), "the repository's own `index` is a FIFO or a socket; remove it");
    fs::remove_file(&socket).unwrap();
    fs::rename(&aside, &socket).unwrap();
    assert!(fixture.errors().is_empty(), "the control: {:?}", fixture.errors());
}

/// The control of the test above.
#[test]
fn plain_git_waits_for_the_writer_of_a_fifo() {
    let fixture = Fixture::with_packed_history();
    let index = fixture.at(".git/index");
    fs::remove_file(&index).unwrap();
    mkfifoat(CWD, &index, Mode::RUSR | Mode::WUSR).unwrap();
    let mut git =
        fixture.plain_git(0, &["status"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_read = || open(&index, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).is_ok();
    fixture.runtime.block_on(eventually("a reader of the FIFO", async || is_read()));
    git.wait().unwrap();
}

#[test]
fn links_to_the_outside_are_refused() {
    let fixture = Fixture::with_packed_history();
    let aside = fixture.folder.path().join("aside");
    for name in ["index", "refs", "objects", "packed-refs"] {
        let path = fixture.at(".git").join(name);
        fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        let refused = fixture.try_answer(fixture.status("")).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::HostileRepository, "{name}: {refused}");
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    // Git decides about a file that it can do without.
    symlink("/dev/null", fixture.at(".git/info/attributes")).unwrap();
    assert!(fixture.errors().is_empty(), "{:?}", fixture.errors());
}

/// A tree that contains itself twice, stored under the id of a folder.
#[test]
fn a_tree_without_end_is_refused() {
    let fixture = Fixture::new();
    fixture.write("d/d/d", "text\n");
    fixture.git(&["add", "."]);
    fixture.commit("First");
    let tree = fixture.git(&["rev-parse", "HEAD:d"]);
    let entries = format!("040000 tree {tree}\ta\n040000 tree {tree}\td\n");
    let made = fixture.try_git_with_input(&["mktree", "--missing"], &entries).stdout;
    let endless = String::from_utf8(made).unwrap();
    let object = |id: &str| fixture.at(".git/objects").join(&id[..2]).join(id[2..].trim());
    fs::rename(object(&endless), object(&tree)).unwrap();
    fixture.git(&["update-index", "--force-remove", "d/d/d"]);
    let errors = fixture.errors().iter().map(ToString::to_string).collect::<Vec<_>>();
    // Before it knew a maximum, git ran out of stack.
    let ends = ["maximum allowed tree depth", "ended by a signal"];
    assert!(errors.iter().any(|error| ends.iter().any(|end| error.contains(end))), "{errors:?}");
}

#[test]
fn folders_of_any_depth_are_read() {
    let fixture = Fixture::with_packed_history();
    fs::create_dir_all(fixture.at(&"d/".repeat(1_500))).unwrap();
    assert!(fixture.errors().is_empty(), "{:?}", fixture.errors());
}

#[test]
fn a_history_that_cannot_be_read_is_not_empty() {
    let fixture = Fixture::new();
    let commit = fixture.commit("First");
    let refused = || fixture.try_answer(fixture.log("")).unwrap_err();
    let branch = fixture.at(".git/refs/heads/main");
    for damaged in ["no hash\n", "1111111111111111111111111111111111111111\n"] {
        fs::write(&branch, damaged).unwrap();
        assert_eq!(refused().code(), ErrorCode::GitRefused, "{}", refused());
    }
    fs::write(&branch, format!("{commit}\n")).unwrap();
    fixture.git(&["config", "core.repositoryFormatVersion", "99"]);
    assert_eq!(refused().code(), ErrorCode::GitRefused, "{}", refused());
    fixture.git(&["config", "--file", ".git/config", "core.repositoryFormatVersion", "0"]);
    assert_eq!(fixture.answer(fixture.log("")).commits.len(), 1, "the control");
}
