//! Commands of the binary under test: servers that are not started yet, as root or without, and clients of a server.

use std::{
    fs::File,
    io::{self, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit,
};

use super::{START, Skep};

/// The user of a server without root, where the tests run as root.
const NOBODY: u32 = 65534;

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
pub(super) fn startable_binary() -> PathBuf {
    static OPENED: LazyLock<File> = LazyLock::new(|| File::open(binary()).unwrap());
    if with_vms() { binary() } else { format!("/proc/self/fd/{}", OPENED.as_raw_fd()).into() }
}

pub(super) fn base_command(program: &Path, data_dir: &Path) -> Command {
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

/// Lets a server open this many files. More than the tests may open needs root.
pub fn limit_open_files(command: &mut Command, files: u64) {
    let limit = Rlimit { current: Some(files), maximum: Some(files) };
    let set = move || Ok(setrlimit(Resource::Nofile, limit)?);
    // SAFETY: the closure makes one system call, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(set) };
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
