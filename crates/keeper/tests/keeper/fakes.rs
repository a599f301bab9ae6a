//! The fake VMM and helper, and the keeper that starts them.

use std::{
    fs,
    io::{self, Write},
    os::fd::{FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use skep_api::swarm::{EngineReport, Isolation};
use skep_engine::{LaunchSpec, Launcher, VmmCommand};
use skep_jail::UidRange;
use skep_keeper::{HelperConfig, KeeperConfig, ReadServerConfig, ServerConfig, SwarmConfig, VmLimits};

use crate::fake_templates::FakeTemplates;

/// A fake VMM. It echoes each word on its monitor, for one client at a time, and performs the action that the word
/// names.
const VMM: &str = r#"
import os, socket, sys, time
for line in sys.stdin: pass
listener = socket.socket(fileno=3)
while True:
    monitor, _ = listener.accept()
    while word := monitor.recv(100):
        if word in (b"die", b"park"):
            sys.stderr.write("these are my last words\n")
            if word == b"park":
                socket.send_fds(monitor, [b"unread"], [2])
            os._exit(3)
        if word == b"hog":
            hog = bytearray(400 << 20)
        monitor.sendall(word)
"#;

/// Limit of concurrent VMs.
pub(crate) const MAX_VMS: u32 = 12;
/// Templates are damaged while this file exists in the data directory.
pub(crate) const DAMAGE: &str = "damage";

/// Runs a keeper. Arguments: data directory, then the server's settings as JSON.
pub(crate) fn keeper() -> ExitCode {
    tracing_to_stderr();
    let mut arguments = std::env::args().skip(2);
    let data_dir = PathBuf::from(arguments.next().unwrap());
    let settings: Value = serde_json::from_str(&arguments.next().unwrap()).unwrap();
    let no_swarm = settings["no_swarm"] == true;
    let swarm = if no_swarm { Err("a test".to_owned()) } else { Ok(swarm_order(&data_dir)) };
    let order = KeeperConfig {
        data_dir,
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        user: Some(settings["user"].as_str().unwrap_or("nobody").to_owned()),
        first_root: None,
        binary: "/proc/self/exe".into(),
        server_arguments: vec!["server-process".to_owned()],
        server_environment: vec![],
        server_config: configured(settings.clone()),
        read_server_config: reread(settings),
        grace: Duration::from_secs(5),
        swarm,
    };
    let outcome = skep_keeper::run(order, |started| {
        println!("{}", json!({"address": started.addresses[0].to_string(), "no_swarm": started.no_swarm}));
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn configured(settings: Value) -> ServerConfig {
    let helper = HelperConfig {
        arguments: vec!["helper".to_owned()],
        environment: vec![("A".to_owned(), "b".to_owned())],
        scratch: vec!["/dev/shm".into()],
        executable: None,
        memory_bytes: 64 << 20,
        pids: 32,
    };
    let executable = ["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from).to_vec();
    let git_helper = HelperConfig { executable: Some(executable), ..helper.clone() };
    ServerConfig { settings, tls: None, commands_helper: helper, git_helper }
}

/// The settings of a restart: those in `next`, or a refusal with the message in `no_restart`.
fn reread(settings: Value) -> ReadServerConfig {
    Arc::new(move || match settings["no_restart"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => Ok(configured(settings["next"].clone())),
    })
}

fn swarm_order(data_dir: &Path) -> SwarmConfig {
    SwarmConfig {
        templates: Arc::new(FakeTemplates { damage: data_dir.join(DAMAGE) }),
        launcher: Arc::new(FakeLauncher),
        engine: EngineReport {
            name: "played".to_owned(),
            accel: "tcg".to_owned(),
            isolation: Isolation::Emulated,
            reason: "a test".to_owned(),
        },
        subnet: "10.98.0.0/24".parse().unwrap(),
        egress: None,
        uids: UidRange { base: 0x7200_0000, count: 1 << 18 },
        limits: VmLimits::new(128, 64),
        max_vms: Some(MAX_VMS),
        memory_mb: None,
        memory_overcommit: 1.0,
        memory_guard: false,
    }
}

struct FakeLauncher;

impl Launcher for FakeLauncher {
    fn overhead_mb(&self) -> u64 {
        64
    }

    fn check_version(&self) -> Result<(), skep_engine::Error> {
        Ok(())
    }

    fn command(&self, order: LaunchSpec) -> Result<VmmCommand, skep_engine::Error> {
        let program = if order.memory_mb == 1 { "/usr/bin/no-such-program" } else { "/usr/bin/python3" };
        let given = order.descriptors;
        Ok(VmmCommand {
            program: program.into(),
            arguments: vec!["-c".to_owned(), VMM.to_owned()],
            environment: Vec::new(),
            descriptors: vec![given.monitor, given.agent, given.console, given.tap, given.ram, given.layer],
            needs_kvm: false,
        })
    }
}

/// A fake helper. It describes itself and waits for the end of its stream.
pub(crate) fn helper() -> ExitCode {
    // SAFETY: the keeper passes the stream as descriptor 3, which no other code uses.
    let mut stream = std::os::unix::net::UnixStream::from(unsafe { OwnedFd::from_raw_fd(3) });
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let group = arguments.last().cloned().unwrap_or_default();
    let own = PathBuf::from(&group).join("own");
    let report = json!({
        "pid": std::process::id(),
        "arguments": arguments,
        "environment": std::env::vars().collect::<Vec<_>>(),
        "status": fs::read_to_string("/proc/self/status").unwrap(),
        "processes": fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            entry.file_name().to_str()?.parse::<u32>().ok()
        }).collect::<Vec<_>>(),
        "scratch": fs::read_dir("/dev/shm").unwrap().count(),
        "executes_scratch": fs::copy("/usr/bin/true", "/dev/shm/true").is_ok()
            && Command::new("/dev/shm/true").status().is_ok(),
        "executes_programs": Command::new("/usr/bin/true").status().is_ok(),
        "makes_groups": fs::create_dir(&own).is_ok(),
        "moves": fs::write(own.join("cgroup.procs"), "0").is_ok(),
        "lifts_limits": fs::read_dir("/sys/fs/cgroup").unwrap().flatten().any(|entry| {
            fs::write(entry.path().join("pids.max"), "max").is_ok()
        }),
    });
    writeln!(stream, "{report}").unwrap();
    let mut rest = Vec::new();
    let _ = io::Read::read_to_end(&mut stream, &mut rest);
    ExitCode::SUCCESS
}

/// Logs to standard error without colours.
fn tracing_to_stderr() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(io::stderr).init();
}
