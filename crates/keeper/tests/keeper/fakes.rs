//! The fake VMM, keeper, server and helper.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io::{self, BufRead, BufReader, IoSlice, Read, Write},
    mem::MaybeUninit,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt::set_socket_linger,
};
use serde_json::{Value, json};
use skep_api::{
    ErrorCode, Failure, TemplateId, VmId,
    swarm::{EngineReport, Isolation},
    templates::GuestSize,
};
use skep_engine::{LaunchSpec, Launcher, VmmCommand};
use skep_jail::UidRange;
use skep_keeper::{
    AdmitBuild, CapturedFiles, HelperConfig, KeeperConfig, OpenTemplate, ReadServerConfig, ServerConfig,
    SwarmConfig, Templates, VmLimits,
};
use skep_keeper_protocol::{AdminKey, Error, ServerEnd, TemplateStatus};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    signal::unix::SignalKind,
    sync::Mutex,
};

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
/// The kernel's limit of descriptors per message.
const MAX_PASSED_DESCRIPTORS: usize = 253;
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

/// Templates that are damaged while the file [`DAMAGE`] exists.
struct FakeTemplates {
    damage: PathBuf,
}

/// Names of the templates that tests launch, in the order of their ids.
const TEMPLATES: [&str; 4] = ["base", "unknown", "missing-program", "no-layer"];

fn template_id(name: &str) -> TemplateId {
    let at = TEMPLATES.iter().position(|known| *known == name).unwrap();
    format!("tpl_{at:026}").parse().unwrap()
}

impl Templates for FakeTemplates {
    fn unload_unused(&self, _: &BTreeSet<TemplateId>) {}

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn open(&self, template: TemplateId) -> Result<OpenTemplate, Failure> {
        let name = *TEMPLATES.iter().find(|name| template_id(name) == template).unwrap();
        if name == "unknown" {
            return Err(Failure::new(ErrorCode::UnknownTemplate, "there is no template `unknown`"));
        }
        let file = |text: &str| -> OwnedFd {
            let file = File::from(rustix::fs::memfd_create("part", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
            (&file).write_all(text.as_bytes()).unwrap();
            io::Seek::rewind(&mut &file).unwrap();
            file.into()
        };
        let layer = if name == "no-layer" { unreadable(&file("layer")) } else { file("layer") };
        // The amount of memory selects the behaviour of the launcher.
        let memory_mb = if name == "missing-program" { 1 } else { 64 };
        let [ram, kernel, initrd, root, state] = ["ram", "kernel", "initrd", "root", "state"].map(file);
        Ok(OpenTemplate {
            key: "key".to_owned(),
            edition: 0,
            vcpus: 1,
            memory_mb,
            ram,
            kernel,
            initrd,
            root,
            state,
            layer,
            delta: None,
            origin: None,
        })
    }

    fn begin_builds(&self, _: AdmitBuild) {}

    fn build(&self, _: TemplateId, _: TemplateId, _: GuestSize) -> Result<(), Failure> {
        unreachable!("no test builds templates")
    }

    fn boot_disk(&self, _: TemplateId, _: TemplateId) -> Result<(), Failure> {
        unreachable!("no test boots disks")
    }

    fn status(&self, _: TemplateId) -> Option<TemplateStatus> {
        None
    }

    fn store(&self, _: TemplateId, _: CapturedFiles<'_>) -> Result<TemplateStatus, Failure> {
        unreachable!("no test stores captures")
    }

    fn list(&self) -> Vec<TemplateStatus> {
        Vec::new()
    }

    fn remove(&self, template: TemplateId) -> Result<(), Failure> {
        Err(Failure::unknown_template(template.to_string()))
    }

    fn check(&self, template: TemplateId, _edition: u64) -> Result<(), Failure> {
        if self.damage.exists() {
            let message = format!("the template {template} is damaged");
            return Err(Failure::new(ErrorCode::TemplateDamaged, message));
        }
        Ok(())
    }
}

/// The same file, opened write-only.
fn unreadable(file: &OwnedFd) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().write(true).open(path).unwrap().into()
}

struct FakeLauncher;

impl Launcher for FakeLauncher {
    fn overhead_mb(&self) -> u64 {
        64
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

pub(crate) fn server() -> ExitCode {
    // SAFETY: the keeper passes its socket as descriptor 3, which no other code uses.
    let socket = unsafe { OwnedFd::from_raw_fd(3) };
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).unwrap();
    let inherited = descriptors();
    let raw = socket.try_clone().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (end, welcome, listeners) = ServerEnd::connect(socket).await.unwrap();
        if let Some(code) = welcome.settings.get("exit").and_then(Value::as_u64) {
            return ExitCode::from(u8::try_from(code).unwrap());
        }
        if let Some(why) = welcome.settings["unable"].as_str() {
            end.unable(why.to_owned()).await.unwrap();
            return ExitCode::FAILURE;
        }
        let alone = Arc::new(AtomicBool::new(!welcome.succeeds));
        if welcome.succeeds {
            let (end, alone) = (end.clone(), Arc::clone(&alone));
            tokio::spawn(async move { alone.store(end.ready().await.is_ok(), Ordering::Release) });
        }
        if welcome.settings["patient"] == true {
            ignore_termination();
        }
        let mut listeners = listeners.into_iter();
        let listener = listeners.next().unwrap();
        let api = listeners.next().map(TcpListener::from);
        let key = welcome.admin_key.unwrap();
        let played = Arc::new(FakeServer {
            end,
            settings: welcome.settings,
            alone,
            key,
            inherited,
            raw,
            vms: Mutex::default(),
            api: api.map(|listener| listener.local_addr().unwrap().to_string()),
        });
        let serving = Arc::clone(&played);
        let handle = tokio::runtime::Handle::current();
        std::thread::spawn(move || accept(&TcpListener::from(listener), &serving, &handle));
        played.end.closed().await;
        ExitCode::SUCCESS
    })
}

fn accept(listener: &TcpListener, played: &Arc<FakeServer>, handle: &tokio::runtime::Handle) {
    for stream in listener.incoming().map(Result::unwrap) {
        let (played, handle) = (Arc::clone(played), handle.clone());
        std::thread::spawn(move || serve_connection(stream, &played, &handle));
    }
}

fn serve_connection(stream: TcpStream, played: &FakeServer, handle: &tokio::runtime::Handle) {
    for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
        let asked: Value = serde_json::from_str(&line).unwrap();
        let answer = handle
            .block_on(played.answer(&asked))
            .unwrap_or_else(|error| json!({"refused": error.code().as_str(), "message": error.to_string()}));
        writeln!(&stream, "{answer}").unwrap();
    }
}

struct FakeServer {
    end: ServerEnd,
    settings: Value,
    /// Whether no predecessor runs any more.
    alone: Arc<AtomicBool>,
    key: AdminKey,
    inherited: Vec<String>,
    /// The keeper's socket, for packets that `end` cannot send.
    raw: OwnedFd,
    vms: Mutex<HashMap<VmId, VmMonitor>>,
    /// Address of the API for VMs.
    api: Option<String>,
}

/// The monitor of a VM, and the state that it was launched with.
struct VmMonitor {
    monitor: UnixStream,
    state: Option<File>,
}

impl FakeServer {
    async fn answer(&self, asked: &Value) -> Result<Value, Error> {
        let (verb, details) = asked.as_object().unwrap().iter().next().unwrap();
        let vm = || details["vm"].as_str().unwrap().parse::<VmId>().unwrap();
        match verb.as_str() {
            "launch" => {
                let launched =
                    self.end.launch(vm(), template_id(details["template"].as_str().unwrap()), None).await?;
                let (pid, ip) = (launched.launched.pid, launched.launched.ip);
                let driven = VmMonitor { monitor: launched.monitor, state: Some(launched.state) };
                self.vms.lock().await.insert(vm(), driven);
                Ok(json!({"pid": pid, "ip": ip}))
            }
            "attach" => {
                let attached = self.end.attach(vm()).await?;
                let (pid, ip) = (attached.launched.pid, attached.launched.ip);
                let driven = VmMonitor { monitor: attached.monitor, state: None };
                self.vms.lock().await.insert(vm(), driven);
                Ok(json!({"pid": pid, "ip": ip}))
            }
            "commit" => self.end.commit(vm()).await.map(|()| json!({})),
            "admit_to_api" => self.end.admit_to_api(vm()).await.map(|()| json!({})),
            "end" => Ok(json!({"out_of_memory": self.end.end(vm()).await?.is_some()})),
            "list" => {
                let held = self.end.list().await?;
                let vms: Vec<VmId> = held.iter().map(|held| held.launched.vm).collect();
                Ok(json!({"vms": vms, "committed": held.iter().filter(|held| held.committed).count()}))
            }
            "usage" => {
                let usage = self.end.usage(vm()).await?;
                Ok(serde_json::to_value(usage).unwrap())
            }
            "send_word" => self.send_word(vm(), details).await,
            "helper" => self.helper(&details["kind"]).await,
            "pass_lingering" => Ok(self.pass_lingering(details)),
            "leave_socket_open" => Ok(json!({"pid": spawn_socket_holder(&self.raw)})),
            "restart" => self.end.restart().await.map(|_| json!({})),
            "whoami" => Ok(self.whoami(details["data_dir"].as_str().unwrap_or_default())),
            other => panic!("{other}"),
        }
    }

    async fn helper(&self, kind: &Value) -> Result<Value, Error> {
        let kind = serde_json::from_value(kind.clone()).unwrap();
        let mut stream = tokio::io::BufReader::new(self.end.helper(kind).await?);
        let mut report = String::new();
        stream.read_line(&mut report).await.map_err(Error::Io)?;
        // Never closed, so the helper runs until this process ends.
        std::mem::forget(stream);
        Ok(serde_json::from_str(&report).unwrap())
    }

    fn pass_lingering(&self, details: &Value) -> Value {
        let unwanted = lingering(details["port"].as_u64().unwrap().try_into().unwrap());
        let null = File::open("/dev/null").unwrap();
        let mut passed = vec![null.as_fd(); details["behind"].as_u64().unwrap().try_into().unwrap()];
        passed.push(unwanted.as_fd());
        send_descriptors(&self.raw, &passed);
        json!({})
    }

    async fn send_word(&self, vm: VmId, details: &Value) -> Result<Value, Error> {
        let mut vms = self.vms.lock().await;
        let driven = vms.get_mut(&vm).unwrap();
        driven.monitor.write_all(details["word"].as_str().unwrap().as_bytes()).await.map_err(Error::Io)?;
        if details["wait"] == false {
            return Ok(json!({}));
        }
        let mut answer = [0; 100];
        let length = driven.monitor.read(&mut answer).await.map_err(Error::Io)?;
        let mut state = String::new();
        if let Some(file) = &mut driven.state {
            file.read_to_string(&mut state).map_err(Error::Io)?;
        }
        Ok(json!({"answer": String::from_utf8_lossy(&answer[..length]), "state": state}))
    }

    fn whoami(&self, data_dir: &str) -> Value {
        let attempt =
            |outcome: io::Result<()>| outcome.map_or_else(|error| error.to_string(), |()| String::new());
        let path = |name: &str| PathBuf::from(data_dir).join(name);
        json!({
            "pid": std::process::id(),
            "status": fs::read_to_string("/proc/self/status").unwrap(),
            "settings": self.settings,
            "alone": self.alone.load(Ordering::Acquire),
            "api": self.api,
            "key_prefix": self.key.prefix,
            "descriptors": self.inherited,
            "keeper": attempt(fs::read_dir(path("keeper")).map(drop)),
            "admin_key": attempt(fs::read(path("admin.key")).map(drop)),
            "server": attempt(fs::write(path("server/file"), "text")),
        })
    }
}

/// Makes this process ignore SIGTERM.
fn ignore_termination() {
    let mut kind = tokio::signal::unix::signal(SignalKind::terminate()).unwrap();
    tokio::spawn(async move { while kind.recv().await.is_some() {} });
}

/// A connection whose close blocks for ten minutes while the peer does not read.
pub(crate) fn lingering(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    set_socket_linger(&stream, Some(Duration::from_secs(600))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Sends unexpected descriptors, possibly more than the protocol allows per packet.
fn send_descriptors(socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(socket, &[IoSlice::new(b"{}")], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Starts a process that holds a copy of the socket and outlives this one.
fn spawn_socket_holder(socket: &OwnedFd) -> u32 {
    let copy = Stdio::from(socket.try_clone().unwrap());
    Command::new("sleep").arg("600").stdin(copy).spawn().unwrap().id()
}

/// All open descriptors, except the one that lists them.
fn descriptors() -> Vec<String> {
    let names = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let open = names.filter(|entry| !fs::read_link(entry.path()).is_ok_and(|to| to.ends_with("fd")));
    let mut open: Vec<String> = open.map(|entry| entry.file_name().into_string().unwrap()).collect();
    open.sort();
    open
}

/// Logs to standard error without colours.
fn tracing_to_stderr() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(io::stderr).init();
}
