//! Operations on real repositories, and the git processes that they start.

mod answers;
mod hostile;
mod limits;
mod permits;
mod process;
mod random_changes;
mod random_history;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use skep_api::{
    AbsolutePath,
    git::{GitBranches, GitDiff, GitLog, GitStatus},
    path::PathEncoding,
};
use tempfile::TempDir;

use super::program::PATH;
use crate::{Error, Place, Run};

/// A folder with a workspace, whose root is a repository.
struct Fixture {
    folder: TempDir,
    place: Place,
    runtime: tokio::runtime::Runtime,
}

impl Fixture {
    /// Creates an empty repository.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let place = Place::new(&root, &root, BTreeMap::new(), "/nowhere").without_groups();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let fixture = Self { folder, place, runtime };
        fixture.git(&["init", "-q", "-b", "main", "."]);
        fixture
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    /// Runs plain git, which must succeed.
    #[track_caller]
    fn git(&self, arguments: &[&str]) -> String {
        let output = self.try_git(1_700_000_000, arguments);
        assert!(output.status.success(), "git {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs plain git at this time, in seconds since 1970.
    fn try_git(&self, seconds: u64, arguments: &[&str]) -> Output {
        self.plain_git(seconds, arguments).output().unwrap()
    }

    /// Runs plain git with this standard input.
    fn try_git_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let file = self.folder.path().join("input");
        fs::write(&file, input).unwrap();
        self.plain_git(0, arguments).stdin(fs::File::open(file).unwrap()).output().unwrap()
    }

    fn plain_git(&self, seconds: u64, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(self.at("")).env_clear().env("PATH", PATH);
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent").env("GIT_MERGE_AUTOEDIT", "no");
        command.env("GIT_OPTIONAL_LOCKS", "0");
        for (who, name, date) in [("AUTHOR", "Ada L.", seconds), ("COMMITTER", "Bob", seconds + 1)] {
            command.env(format!("GIT_{who}_NAME"), name);
            command.env(format!("GIT_{who}_EMAIL"), format!("{who}@example.com"));
            command.env(format!("GIT_{who}_DATE"), format!("{date} +0100"));
        }
        command
    }

    /// Commits what is staged, perhaps nothing. Returns the hash of the commit.
    fn commit(&self, message: &str) -> String {
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn path(&self, name: &str) -> AbsolutePath {
        absolute(&self.at(name))
    }

    fn log(&self, name: &str) -> GitLog {
        GitLog { path: Some(self.path(name)), revision: None, file: None, limit: 50, cursor: None }
    }

    fn branches(&self, name: &str) -> GitBranches {
        GitBranches { path: Some(self.path(name)), remote: true }
    }

    fn status(&self, name: &str) -> GitStatus {
        GitStatus { path: self.path(name) }
    }

    fn diff(&self, name: &str) -> GitDiff {
        GitDiff { path: Some(self.path(name)), staged: false, from: None, to: None, file: None, context: 3 }
    }

    fn try_answer<O: Run>(&self, operation: O) -> Result<O::Answer, Error> {
        self.runtime.block_on(operation.run(&self.place))
    }

    #[track_caller]
    fn answer<O: Run>(&self, operation: O) -> O::Answer {
        self.try_answer(operation).unwrap()
    }
}

fn absolute(path: &Path) -> AbsolutePath {
    AbsolutePath::parse("path", path.to_str().unwrap(), PathEncoding::Plain).unwrap()
}
