//! A server for one test, on a free port, with its own data directory.

mod commands;
mod requests;

use std::{
    path::Path,
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub use self::{
    commands::{
        binary, command, limit_open_files, output_of, serve, serve_anywhere, small_vms, with_vms,
        write_program,
    },
    requests::{Answer, send, try_send},
};

use self::commands::{base_command, startable_binary};
use super::{faults, leftovers};
use crate::temp_dir;

/// A start creates keys and a store, and loads a template, which in some tests is baked first.
const START: Duration = Duration::from_secs(600);
const STOP: Duration = Duration::from_secs(60);

/// A running server. Its drop stops it, and fails the test if it leaves anything behind.
pub struct Skep {
    pub data_dir: TempDir,
    pub url: String,
    pub key: String,
    child: Option<Child>,
    asked_to_stop: bool,
    client: reqwest::Client,
}

impl Skep {
    /// Starts a server and waits until it serves.
    pub async fn start() -> Self {
        let data_dir = temp_dir();
        Self::start_on(data_dir, &[]).await
    }

    /// Starts a server on an existing data directory, with more options.
    pub async fn start_on(data_dir: TempDir, options: &[&str]) -> Self {
        Self::start_as(data_dir, |command| _ = command.args(options)).await
    }

    /// Starts a server whose command the caller may change.
    pub async fn start_as(data_dir: TempDir, alter: impl FnOnce(&mut Command)) -> Self {
        Self::start_by(&startable_binary(), data_dir, alter).await
    }

    /// Starts another binary than the one under test.
    pub async fn start_by(program: &Path, data_dir: TempDir, alter: impl FnOnce(&mut Command)) -> Self {
        // The log of an earlier start is removed, so that its address is not taken for that of this one.
        let _ = std::fs::remove_file(data_dir.path().join("test.log"));
        let mut command = base_command(program, data_dir.path());
        command.args(["--listen", "127.0.0.1:0"]);
        alter(&mut command);
        let mut child = command.spawn().unwrap();
        let Some(url) = wait_for_address(&mut child, data_dir.path()).await else {
            let _ = child.kill();
            let log_text = log(data_dir.path());
            drop(StoppedServer(Some(data_dir)));
            panic!("the server did not start; its log:\n{log_text}");
        };
        let key = std::fs::read_to_string(data_dir.path().join("admin.key")).unwrap().trim().to_owned();
        // Fails where another test has installed the provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Each request has a connection of its own: a server that stops closes idle ones, maybe while a request is on its way.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        Self { data_dir, url, key, child: Some(child), asked_to_stop: false, client }
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        log(self.data_dir.path())
    }

    /// The id of the started process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Asks the server to stop as a service manager would. The drop checks that it does.
    pub fn ask_to_stop(&mut self) {
        self.signal(Signal::TERM);
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(child) = self.child.as_ref().filter(|_| !self.asked_to_stop) {
            kill_process(Pid::from_child(child), signal).unwrap();
        }
        // A second signal would stop the server at once.
        self.asked_to_stop = true;
    }

    /// Stops the server and its VMs as Ctrl-C does. Returns the data directory.
    pub fn stop(mut self) -> TempDir {
        self.end();
        std::mem::replace(&mut self.data_dir, tempfile::tempdir().unwrap())
    }

    /// Stops the server as a service manager would: its VMs continue.
    pub fn stop_and_leave_vms(mut self) -> StoppedServer {
        self.ask_to_stop();
        self.wait_for_end();
        self.take_stopped()
    }

    /// Kills the process, while requests may be in progress.
    pub fn kill(&self) {
        if let Some(child) = &self.child {
            kill_process(Pid::from_child(child), Signal::KILL).unwrap();
        }
    }

    /// Returns the data directory of a killed server.
    pub fn killed(mut self) -> TempDir {
        if let Some(mut child) = self.child.take() {
            child.wait().unwrap();
        }
        faults::assert_none_in(&self.log());
        self.asked_to_stop = true;
        std::mem::replace(&mut self.data_dir, tempfile::tempdir().unwrap())
    }

    /// Kills the process, so that it cannot clean up.
    pub fn crash(mut self) -> StoppedServer {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        self.take_stopped()
    }

    fn take_stopped(&mut self) -> StoppedServer {
        let log = self.log();
        let wreck = StoppedServer(Some(std::mem::replace(&mut self.data_dir, tempfile::tempdir().unwrap())));
        faults::assert_none_in(&log);
        wreck
    }

    fn end(&mut self) {
        self.signal(Signal::INT);
        if self.wait_for_end() {
            faults::assert_none_in(&self.log());
            let left = leftovers::left_by_server(self.data_dir.path());
            assert!(left.is_empty(), "left behind: {left:#?}; the log of the server:\n{}", self.log());
        }
    }

    /// Returns `false` where it had ended before.
    fn wait_for_end(&mut self) -> bool {
        let Some(mut child) = self.child.take() else { return false };
        let with_log = |what: &str, dir: &Path| format!("{what}; the log of the server:\n{}", log(dir));
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > STOP {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{}", with_log("the server did not stop at a signal", self.data_dir.path()));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(
            status.success(),
            "{}",
            with_log(&format!("the server ended with {status}"), self.data_dir.path())
        );
        true
    }
}

/// The data directory of a server that ended and may have left VMs, which the drop removes.
pub struct StoppedServer(Option<TempDir>);

impl StoppedServer {
    pub fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }

    /// Starts a server on the data directory.
    pub async fn start(self) -> Skep {
        self.start_with(&[]).await
    }

    /// Starts a server with more options.
    pub async fn start_with(self, options: &[&str]) -> Skep {
        self.start_as(|command| _ = command.args(options)).await
    }

    /// The same with all that a process is started with.
    pub async fn start_as(self, alter: impl FnOnce(&mut Command)) -> Skep {
        self.start_by(&startable_binary(), alter).await
    }

    /// Starts another binary than the one under test.
    pub async fn start_by(mut self, program: &Path, alter: impl FnOnce(&mut Command)) -> Skep {
        Skep::start_by(program, self.0.take().unwrap(), alter).await
    }
}

impl Drop for StoppedServer {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            let mut command = Command::new(binary());
            let images = tempfile::tempdir().unwrap();
            command.args(["doctor", "--clean", "--data-dir"]).arg(dir.path());
            let _ = command.arg("--image-dir").arg(images.path()).output();
        }
    }
}

impl Drop for Skep {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of the server:\n{}", self.log());
            if let Some(child) = &mut self.child {
                let _ = kill_process(Pid::from_child(child), Signal::INT);
                let _ = child.wait();
            }
            return;
        }
        self.end();
    }
}

async fn wait_for_address(child: &mut Child, data_dir: &Path) -> Option<String> {
    let begun = Instant::now();
    while begun.elapsed() < START && child.try_wait().unwrap().is_none() {
        let log_text = log(data_dir);
        if let Some((_, rest)) = log_text.split_once("skep serves at ")
            && let Some(url) = rest.split(|c: char| c.is_whitespace() || c == '"').next()
            && rest.contains('\n')
        {
            return Some(url.to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

fn log(data_dir: &Path) -> String {
    std::fs::read_to_string(data_dir.join("test.log")).unwrap_or_default()
}
