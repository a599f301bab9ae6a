//! The fake server: it answers requests of tests by requests to its keeper.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, BufRead, BufReader, IoSlice, Read, Write},
    mem::MaybeUninit,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    path::PathBuf,
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
use skep_api::VmId;
use skep_keeper_protocol::{AdminKey, AfterCapture, Error, ServerEnd};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    signal::unix::SignalKind,
    sync::Mutex,
};

use crate::fake_templates::template_id;

/// The kernel's limit of descriptors per message.
const MAX_PASSED_DESCRIPTORS: usize = 253;

pub(crate) fn server() -> ExitCode {
    // SAFETY: the keeper passes its socket as descriptor 3, which no other code uses.
    let socket = unsafe { OwnedFd::from_raw_fd(3) };
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).unwrap();
    let inherited = descriptors();
    let raw = socket.try_clone().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (end, setup, listeners) = ServerEnd::connect(socket).await.unwrap();
        if let Some(code) = setup.settings.get("exit").and_then(Value::as_u64) {
            return ExitCode::from(u8::try_from(code).unwrap());
        }
        if let Some(why) = setup.settings["unable"].as_str() {
            end.unable(why.to_owned()).await.unwrap();
            return ExitCode::FAILURE;
        }
        let alone = Arc::new(AtomicBool::new(!setup.succeeds));
        if setup.succeeds {
            let (end, alone) = (end.clone(), Arc::clone(&alone));
            tokio::spawn(async move { alone.store(end.ready().await.is_ok(), Ordering::Release) });
        }
        if setup.settings["patient"] == true {
            ignore_termination();
        }
        let mut listeners = listeners.into_iter();
        let listener = listeners.next().unwrap();
        let api = listeners.next().map(TcpListener::from);
        let key = setup.admin_key.unwrap();
        let played = Arc::new(FakeServer {
            end,
            settings: setup.settings,
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
            "memory" => Ok(serde_json::to_value(self.end.memory().await?).unwrap()),
            "send_word" => self.send_word(vm(), details).await,
            "helper" => self.helper(&details["kind"]).await,
            "build" => self.build(details).await,
            "prepare_capture" => {
                let capture = template_id(details["capture"].as_str().unwrap());
                self.end.prepare_capture(vm(), capture, AfterCapture::Ends).await.map(|_| json!({}))
            }
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

    async fn build(&self, size: &Value) -> Result<Value, Error> {
        let size = serde_json::from_value(size.clone()).unwrap();
        self.end.build_template(template_id("unknown"), template_id("base"), size).await?;
        Ok(json!({}))
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
