//! A server whose VMMs start a probe in their jails, and canaries that the probe must not touch.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, ErrorKind, Write},
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixListener},
            process::CommandExt,
        },
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Skep, serve, temp_dir, write_program};

const PROBE: &str = include_str!("probe.py");
const SECRET: &str = "canary-of-the-machine";

/// Bind-mounts the probe over the VMM's program, for the following process and its children only.
const MOUNT_PROBE: &str = r#"
mount -t tmpfs skep-escape "$1"
mkdir -p "$1/upper/bin" "$1/work"
cp /usr/bin/qemu-system-x86_64 "$1/upper/bin/qemu-of-the-test"
cp "$2" "$1/upper/bin/qemu-system-x86_64"
chmod 755 "$1/upper" "$1/upper/bin" "$1/upper/bin/"*
mount -t overlay skep-escape -o "lowerdir=/usr,upperdir=$1/upper,workdir=$1/work" /usr
shift 2
exec "$@"
"#;

/// Starts a server whose VMMs start a probe and then execute QEMU. Returns it and the folder of the probe.
pub(super) async fn start() -> (Skep, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let probe = probe_in(&folder);
    let site = folder.path().join("site");
    fs::create_dir(&site).unwrap();
    let data_dir = temp_dir();
    let log = data_dir.path().join("test.log");
    let plain = serve(data_dir.path(), &[]);
    let skep = Skep::start_as(data_dir, |command| {
        let mut disguised = Command::new("unshare");
        disguised.args(["--mount", "--propagation", "private", "sh", "-euc", MOUNT_PROBE, "sh"]);
        disguised.arg(&site).arg(&probe).arg(plain.get_program()).args(plain.get_args());
        disguised.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let file = || File::options().create(true).append(true).open(&log).unwrap();
        disguised.stdin(Stdio::null()).stdout(file()).stderr(file()).process_group(0);
        *command = disguised;
    })
    .await;
    (skep, folder)
}

fn probe_in(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("probe.py");
    write_program(&path, PROBE);
    path
}

/// A process that runs attempts, in a jail or outside.
pub(super) struct Probe {
    orders: File,
    answers: BufReader<File>,
    /// The process, where it is not in a jail. It is killed on drop.
    child: Option<Child>,
}

impl Probe {
    /// The probe in the jail of a VMM, and its process id on this machine.
    pub(super) fn in_jail_of(vmm: u64) -> (Self, u32) {
        let children = fs::read_to_string(format!("/proc/{vmm}/task/{vmm}/children")).unwrap();
        let pid: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
        let end = |number: u32| format!("/proc/{pid}/fd/{number}");
        let orders = File::options().write(true).open(end(101)).unwrap();
        let answers = BufReader::new(File::open(end(102)).unwrap());
        (Self { orders, answers, child: None }, pid)
    }

    /// Starts a control that is root on this machine, or in new namespaces.
    pub(super) fn outside(folder: &TempDir, namespaces: bool) -> Self {
        let mut command = Command::new(if namespaces { "unshare" } else { "/usr/bin/python3" });
        if namespaces {
            command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]);
            command.args(["--mount-proc", "--net", "--ipc", "--uts", "/usr/bin/python3"]);
        }
        command.arg("-IS").arg(probe_in(folder)).arg("serve");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = File::from(std::os::fd::OwnedFd::from(child.stdin.take().unwrap()));
        let answers = File::from(std::os::fd::OwnedFd::from(child.stdout.take().unwrap()));
        Self { orders, answers: BufReader::new(answers), child: Some(child) }
    }

    /// Runs an attempt. Returns `worked: ...`, `refused: <errno>`, `died: <status>`, `gone` where its jail ended, or
    /// `broken: ...` where the attempt itself is invalid.
    pub(super) fn attempt(&mut self, code: &str, with: &Value) -> String {
        if writeln!(self.orders, "{}", json!({"code": code, "with": with})).is_err() {
            return "gone".to_owned();
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| "gone".to_owned())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Objects of the machine that an attempt may try to access.
pub(super) struct Canaries {
    folder: TempDir,
    process: Child,
    tcp: TcpListener,
    unix: UnixListener,
    unnamed: UnixListener,
    abstract_name: String,
}

impl Canaries {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Accessible to everybody, so that only the jail prevents access.
        for path in [folder.path().to_owned(), folder.path().join("writable")] {
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        fs::write(folder.path().join("file"), SECRET).unwrap();
        fs::set_permissions(folder.path().join("file"), fs::Permissions::from_mode(0o666)).unwrap();
        let unix = UnixListener::bind(folder.path().join("socket")).unwrap();
        fs::set_permissions(folder.path().join("socket"), fs::Permissions::from_mode(0o777)).unwrap();
        let abstract_name = format!("skep-escape-{}", folder.path().display());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let unnamed = UnixListener::bind_addr(&address).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        unix.set_nonblocking(true).unwrap();
        unnamed.set_nonblocking(true).unwrap();
        let process = Command::new("sleep").arg("3600").spawn().unwrap();
        Self { folder, process, tcp, unix, unnamed, abstract_name }
    }

    /// The description of the canaries for attempts.
    pub(super) fn describe(&self) -> Value {
        json!({
            "file": self.folder.path().join("file"),
            "text": SECRET,
            "pid": self.process.id(),
            "port": self.tcp.local_addr().unwrap().port(),
            "socket": self.folder.path().join("socket"),
            "abstract": self.abstract_name,
            "writable": self.folder.path().join("writable"),
        })
    }

    /// The canaries that were accessed.
    pub(super) fn touched(&mut self) -> Vec<&'static str> {
        let silent = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
        let text = fs::read_to_string(self.folder.path().join("file")).unwrap_or_default();
        let touched = [
            (text != SECRET, "the file"),
            (self.process.try_wait().unwrap().is_some(), "the process"),
            (!self.tcp.accept().is_err_and(silent), "the loopback"),
            (!self.unix.accept().is_err_and(silent), "the socket file"),
            (!self.unnamed.accept().is_err_and(silent), "the socket without a file"),
            (fs::read_dir(self.folder.path().join("writable")).unwrap().count() > 0, "the folder"),
        ];
        touched.into_iter().filter_map(|(touched, what)| touched.then_some(what)).collect()
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
