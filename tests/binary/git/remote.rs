//! A git server for tests of remotes, which `remote.py` runs.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A git server on the loopback address of this machine, which VMs cannot reach.
pub(super) struct Remote {
    process: Child,
    folder: tempfile::TempDir,
    pub(super) url: String,
}

impl Remote {
    pub(super) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments.
    pub(super) fn start_with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("git/remote.py");
        let mut python = Command::new("python3");
        let python = python.arg(script).arg(folder.path()).args(arguments);
        let mut process = python.stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let url = format!("http://127.0.0.1:{}/x.git", port.trim());
        let remote = Self { process, folder, url };
        remote.git(&["init", "-q", "--bare", "-b", "main", "x.git"]);
        remote
    }

    pub(super) fn address(&self) -> SocketAddr {
        let address = self.url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/x.git"));
        address.unwrap().parse().unwrap()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    pub(super) fn git(&self, arguments: &[&str]) -> String {
        let person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let output =
            Command::new("git").args(person).args(arguments).current_dir(self.folder.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Commits to the remote, as another user.
    pub(super) fn commit(&self, file: &str, content: &str) -> String {
        if !self.at("other").exists() {
            self.git(&["clone", "-q", "x.git", "other"]);
        }
        self.git(&["-C", "other", "pull", "-q", "--ff-only"]);
        std::fs::write(self.at("other").join(file), content).unwrap();
        self.git(&["-C", "other", "add", "."]);
        self.git(&["-C", "other", "commit", "-qm", content]);
        self.git(&["-C", "other", "push", "-q"]);
        self.git(&["-C", "other", "rev-parse", "HEAD"])
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
