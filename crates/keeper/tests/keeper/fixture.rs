//! A test fixture: a data directory, keepers that run on it, and checks for leftovers.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};
use serde_json::{Value, json};
use skep_api::VmId;
use skep_harness::control_groups;
use skep_keeper::DataDir;

use crate::TIMEOUT;

pub(crate) struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The server's user must be able to traverse it.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn found(&self) -> DataDir {
        DataDir::find(&self.data_dir()).unwrap()
    }

    pub(crate) fn name(&self) -> String {
        self.found().name()
    }

    pub(crate) fn sockets(&self) -> PathBuf {
        self.found().sockets()
    }

    fn command(&self, settings: &Value) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg("keeper").arg(self.data_dir()).arg(settings.to_string());
        command
    }

    pub(crate) fn keeper(&self) -> RunningKeeper {
        let (keeper, no_swarm) = self.start();
        assert_eq!(no_swarm, Value::Null);
        keeper
    }

    /// Starts a keeper with these settings of the server.
    pub(crate) fn keeper_with(&self, settings: &Value) -> RunningKeeper {
        self.start_with(settings).0
    }

    /// Starts a keeper. Returns also why it has no VMs, if so.
    pub(crate) fn start(&self) -> (RunningKeeper, Value) {
        self.start_with(&json!({"a": 1}))
    }

    fn start_with(&self, settings: &Value) -> (RunningKeeper, Value) {
        let log = self.dir.path().join("log");
        let mut child = self
            .command(settings)
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let started: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("{}", fs::read_to_string(&log).unwrap()));
        let address = started["address"].as_str().unwrap().to_owned();
        (RunningKeeper { child, address, data_dir: self.data_dir(), log }, started["no_swarm"].clone())
    }

    /// Runs a keeper that exits by itself. Returns its exit code and standard error.
    pub(crate) fn failing_keeper(&self) -> (i32, String) {
        self.keeper_with_settings(json!({}))
    }

    pub(crate) fn keeper_with_settings(&self, settings: Value) -> (i32, String) {
        let output = self.command(&settings).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    /// The network links in the namespace.
    pub(crate) fn links(&self) -> String {
        let output = Command::new("ip").args(["-n", &self.name(), "link"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The VMs that may reach the API according to the packet filter.
    pub(crate) fn api_callers(&self) -> String {
        let list = ["netns", "exec", &self.name(), "nft", "list", "set", "inet", "skep", "api_callers"];
        let output = Command::new("ip").args(list).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The cgroups of that name.
    pub(crate) fn groups_of(&self, name: &str) -> Vec<PathBuf> {
        control_groups(|group| group == name)
    }

    /// The cgroups of the helper with this number.
    pub(crate) fn groups_of_helper(&self, number: u32) -> Vec<PathBuf> {
        let trees = self.groups_of(&format!("{}-helpers", self.name())).into_iter();
        trees.map(|tree| tree.join(format!("helper-{number}"))).filter(|group| group.exists()).collect()
    }

    pub(crate) fn assert_nothing_left(&self) {
        let name = self.name();
        assert_eq!(self.groups_of(&name), Vec::<PathBuf>::new());
        assert!(!Path::new("/run/netns").join(&name).exists());
        assert!(!self.sockets().exists());
        assert!(!self.data_dir().join("keeper/lock").exists());
        for folder in ["keeper/layers", "keeper/vms"] {
            assert_eq!(fs::read_dir(self.data_dir().join(folder)).unwrap().count(), 0, "{folder}");
        }
        let claims =
            fs::read_dir("/run/skep/uids").unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()));
        let hash = name.trim_start_matches("skep-");
        assert!(claims.filter_map(Result::ok).all(|owner| owner != hash), "a claim of user ids is left");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&name), "{mounts}");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A failed test must not affect the next one.
        if self.data_dir().exists() {
            let _ = skep_keeper::clean_data_dir(&self.data_dir());
        }
    }
}

pub(crate) struct LaunchedVm {
    pub(crate) id: String,
    pub(crate) pid: u32,
    pub(crate) ip: String,
}

/// A running keeper. Killed on drop unless it was stopped.
pub(crate) struct RunningKeeper {
    child: Child,
    pub(crate) address: String,
    data_dir: PathBuf,
    log: PathBuf,
}

impl RunningKeeper {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.log.clone()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Like [`Self::ask`]. `None` if the server ends before it answers.
    pub(crate) fn try_request(&self, question: &Value) -> Option<Value> {
        let stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        exchange(&mut BufReader::new(stream), question)
    }

    /// A connection that the running server has accepted. Others may get another server during a restart.
    pub(crate) fn accepted_connection(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut connection = BufReader::new(stream);
        exchange(&mut connection, &json!({"whoami": {}})).unwrap();
        connection
    }

    pub(crate) fn request(&self, question: &Value) -> Value {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        writeln!(&stream, "{question}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let mut answer: Value = serde_json::from_str(&line).unwrap();
        // Distinguished from a launch that is refused for another reason than the test's.
        if let Some(message) = answer.as_object_mut().unwrap().remove("message") {
            eprintln!("{question}: {message}");
        }
        answer
    }

    /// Launches a VM and commits it.
    pub(crate) fn launch_committed(&self) -> LaunchedVm {
        let vm = self.launch("base");
        assert_eq!(self.request(&json!({"commit": {"vm": vm.id}})), json!({}));
        vm
    }

    /// The VMs of the keeper.
    pub(crate) fn list(&self) -> Vec<String> {
        let answer = self.request(&json!({"list": {}}));
        answer["vms"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    /// Reconnects to a VM and checks that the same one answers.
    pub(crate) fn assert_adopted(&self, vm: &LaunchedVm) {
        let attached = self.request(&json!({"attach": {"vm": vm.id}}));
        assert_eq!(attached, json!({"pid": vm.pid, "ip": vm.ip}), "{}", self.log());
        assert_eq!(self.send_word(vm, "again"), json!({"answer": "again", "state": ""}));
        let usage = self.request(&json!({"usage": {"vm": vm.id}}));
        assert!(usage["memory_bytes"].as_u64().unwrap() > 0, "{usage}");
        assert!(usage["load"]["disk_bytes"].as_u64().unwrap() > 0, "{usage}");
    }

    pub(crate) fn launch(&self, template: &str) -> LaunchedVm {
        let id = VmId::generate().to_string();
        let answer = self.request(&json!({"launch": {"vm": id, "template": template}}));
        let pid = answer["pid"].as_u64().unwrap_or_else(|| panic!("{answer}: {}", self.log()));
        LaunchedVm { id, pid: u32::try_from(pid).unwrap(), ip: answer["ip"].as_str().unwrap().to_owned() }
    }

    /// Sends a word to the VMM and returns its answer.
    pub(crate) fn send_word(&self, vm: &LaunchedVm, word: &str) -> Value {
        self.request(&json!({"send_word": {"vm": vm.id, "word": word}}))
    }

    pub(crate) fn send_word_without_answer(&self, vm: &LaunchedVm, word: &str) {
        self.request(&json!({"send_word": {"vm": vm.id, "word": word, "wait": false}}));
    }

    pub(crate) fn whoami(&self) -> Value {
        self.request(&json!({"whoami": {"data_dir": self.data_dir}}))
    }

    pub(crate) fn server_pid(&self) -> u32 {
        u32::try_from(self.whoami()["pid"].as_u64().unwrap()).unwrap()
    }

    pub(crate) fn kill_server(&self) {
        let pid = Pid::from_raw(self.server_pid().cast_signed()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        pidfd_send_signal(&pidfd, Signal::KILL).unwrap();
        // By the pidfd: /proc shows a zombie when only the first thread has ended, while another one may still accept.
        let mut ends = [PollFd::new(&pidfd, PollFlags::IN)];
        let patience = Timespec { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        assert_eq!(poll(&mut ends, Some(&patience)).unwrap(), 1, "the server does not die");
    }

    /// Stops the keeper as a service manager does: committed VMs keep running.
    pub(crate) fn stop(self) {
        self.stop_by(Signal::TERM);
    }

    pub(crate) fn stop_by(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }

    pub(crate) fn crash(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for RunningKeeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request on a connection. `None` if the server ends before it answers.
pub(crate) fn exchange(connection: &mut BufReader<TcpStream>, question: &Value) -> Option<Value> {
    writeln!(connection.get_ref(), "{question}").ok()?;
    let mut line = String::new();
    connection.read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

pub(crate) fn uid_of(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}
