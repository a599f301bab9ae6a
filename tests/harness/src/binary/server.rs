//! A server for one test, on a free port, with its own data directory.

use std::{
    fs::File,
    io::{self, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use reqwest::{Method, RequestBuilder, StatusCode, header::HeaderMap};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use serde_json::Value;
use tempfile::TempDir;

use super::{faults, leftovers};
use crate::{eventually, temp_dir};

/// A start creates keys and a store, and loads a template, which in some tests is baked first.
const START: Duration = Duration::from_secs(600);
const STOP: Duration = Duration::from_secs(60);
/// The user of a server without root, where the tests run as root.
const NOBODY: u32 = 65534;

/// A running server. Its drop stops it, and fails the test if it leaves anything behind.
pub struct Skep {
    pub data_dir: TempDir,
    pub url: String,
    pub key: String,
    child: Option<Child>,
    asked_to_stop: bool,
    client: reqwest::Client,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// Checks that the answer is a refusal with this status and code. Returns its message.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> &str {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.headers["skep-error"], code, "{self:?}");
        let body = self.body.as_object().unwrap();
        assert_eq!(body.len(), 2, "{self:?}");
        assert_eq!(body["error"], self.status.canonical_reason().unwrap(), "{self:?}");
        body["message"].as_str().unwrap()
    }

    /// Checks that the answer has this status of success. Returns the body.
    #[track_caller]
    pub fn ok(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self.body
    }
}

/// Whether servers under test run as root and have VMs: `SKEP_TEST_ROOT` is `1`. Otherwise they give root up, where the tests
/// have it.
pub fn with_vms() -> bool {
    std::env::var_os("SKEP_TEST_ROOT").is_some_and(|value| value == "1")
}

/// The binary under test.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("SKEP_BINARY").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/skep"),
        PathBuf::from,
    );
    assert!(path.is_file(), "{} is missing: run `make build`, or `make test`", path.display());
    path
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
        Self { data_dir, url, key, child: Some(child), asked_to_stop: false, client: reqwest::Client::new() }
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        log(self.data_dir.path())
    }

    /// The id of the started process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// A request with the admin key.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(&self.key)
    }

    /// A request without a key.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).timeout(Duration::from_secs(300))
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    /// The body of the health check, once it succeeds.
    pub async fn health(&self) -> Value {
        self.health_answer(Method::GET).await.ok(200)
    }

    /// The answer of the health check to a request without a key. The check is repeated while it is refused because the store
    /// is unavailable: while the disk stalls, a write takes longer than the check waits for it.
    pub async fn health_answer(&self, method: Method) -> Answer {
        let mut answer = None;
        eventually("an answer of the health check", async || {
            let last = send(self.bare(method.clone(), "/api/health")).await;
            let is_refused = last.headers.get("skep-error").is_some_and(|code| code == "store_unavailable");
            answer = Some(last);
            !is_refused
        })
        .await;
        answer.unwrap()
    }

    pub async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::POST, path).json(body)).await
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

/// Sends a request and reads the complete answer.
pub async fn send(request: RequestBuilder) -> Answer {
    try_send(request).await.unwrap()
}

/// Like [`send`], but the server may end meanwhile.
pub async fn try_send(request: RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send().await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Answer { status, headers, body })
}

/// The command of a server on a free port, not yet started.
pub fn serve(data_dir: &Path, options: &[&str]) -> Command {
    let mut command = serve_anywhere(data_dir);
    command.args(["--listen", "127.0.0.1:0"]).args(options);
    command
}

/// The command of a server without the flag for its address.
pub fn serve_anywhere(data_dir: &Path) -> Command {
    base_command(&startable_binary(), data_dir)
}

/// The binary under test, for a server that may give root up. It is named by a descriptor then, because the other user
/// need not be allowed to search the directories above it: a clone below /root is one.
fn startable_binary() -> PathBuf {
    static OPENED: LazyLock<File> = LazyLock::new(|| File::open(binary()).unwrap());
    if with_vms() { binary() } else { format!("/proc/self/fd/{}", OPENED.as_raw_fd()).into() }
}

fn base_command(program: &Path, data_dir: &Path) -> Command {
    let file = || File::options().create(true).append(true).open(data_dir.join("test.log")).unwrap();
    let mut command = Command::new(program);
    command.arg0("skep");
    command.args(["serve", "--data-dir"]).arg(data_dir);
    command.stdin(Stdio::null()).stdout(file()).stderr(file());
    // Ctrl-C in a terminal must reach only the tests, which end the server.
    command.process_group(0);
    // A flag takes precedence over it. All tests share one address.
    command.env("SKEP_FAILED_AUTH_LIMIT", "100000/s");
    if with_vms() {
        run_as_root(&mut command);
    } else {
        give_root_up(&mut command, data_dir);
    }
    end_with_this_thread(&mut command);
    command
}

fn run_as_root(command: &mut Command) {
    assert!(rustix::process::getuid().is_root(), "tests with VMs need root: run `make test` as root");
    let Some(images) = std::env::var_os("SKEP_TEST_IMAGES") else {
        panic!("SKEP_TEST_IMAGES is not set: run `make test`");
    };
    // Flags take precedence over these. A pool costs some seconds per server, and few tests need it.
    command.env("SKEP_IMAGE_DIR", images).env("SKEP_POOL_SIZE", "0");
    small_vms(command);
}

/// The size of the VMs of tests: that of the template that `make test` bakes. Flags take precedence over it.
pub fn small_vms(command: &mut Command) {
    let size = [("SKEP_BASE_MEMORY_MB", "128"), ("SKEP_BASE_VCPUS", "1"), ("SKEP_BASE_DISK_MB", "2048")];
    command.envs(size);
}

/// Without root there is no swarm, so a server under test gives root up first.
fn give_root_up(command: &mut Command, data_dir: &Path) {
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(data_dir, Some(NOBODY), Some(NOBODY)).unwrap();
        std::os::unix::fs::chown(data_dir.join("test.log"), Some(NOBODY), Some(NOBODY)).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    }
}

/// A test that runs out of time is killed, and nothing of it stops its server. The server is interrupted then, which ends its
/// VMs as well. In a test this is the thread of the test itself, which ends last.
fn end_with_this_thread(command: &mut Command) {
    let test = getpid();
    let ask_for_signal = move || {
        set_parent_process_death_signal(Some(Signal::INT))?;
        // The test may have been killed before it was asked for.
        if getppid() == Some(test) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
    };
    // SAFETY: the closure makes two system calls, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(ask_for_signal) };
}

/// A command of the binary that calls this server.
pub fn command(server: &Skep, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .env("SKEP_URL", &server.url)
        .env("SKEP_API_KEY", &server.key)
        .stdin(Stdio::null());
    command
}

/// Runs a command that must end by itself, and returns its output.
pub fn output_of(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > START {
            child.kill().unwrap();
            panic!("it did not end by itself: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// Writes a program. By another process: processes that other tests start must not inherit a descriptor that writes a program,
/// which cannot be executed as long as there is one.
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install");
    let install = install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut install = install.spawn().unwrap();
    install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
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
