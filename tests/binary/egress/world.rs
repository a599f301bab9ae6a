//! The network of the test.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::{
    mount::{MountPropagationFlags, mount_bind, mount_change},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::harness::unique_name;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/egress/world.py");
/// Names that the world's name server knows.
const NAMES: [&str; 16] = [
    "api.test=203.0.113.7",
    "b.test=203.0.113.7",
    // Hosts that serve files over TLS.
    "code.test=203.0.113.7",
    "packages.test=203.0.113.7",
    // A host of a preset.
    "gitlab.com=203.0.113.7",
    "a.wild.test=203.0.113.7",
    "other.test=203.0.113.7",
    "own.test=203.0.113.1",
    "loop.test=127.0.0.1",
    "priv.test=10.9.0.1",
    "meta.test=169.254.169.254",
    "zero.test=0.0.0.0",
    // Of other names, one of which leads to a private address.
    "alias.test=@other.test",
    "inner.test=@chain.test",
    "chain.test=@priv.test",
    // Another answer each time, such as between a look-up and a connection.
    "rebind.test=203.0.113.7/127.0.0.1/10.9.0.1",
];
/// Addresses outside. The first ones are public for the test.
const ADDRESSES: [&str; 5] =
    ["203.0.113.7/24", "203.0.113.8/24", "203.0.113.53/24", "10.9.0.1/24", "169.254.169.254/16"];

/// Two namespaces, of the server's machine and of the world, with web servers in both.
pub(super) struct World {
    machine: String,
    outside: String,
    servers: Vec<Child>,
}

impl World {
    /// Runs a test on a thread in the namespace of the machine. All processes that it starts are there as well.
    pub(super) fn run(test: impl AsyncFnOnce() + Send + 'static) {
        Self::run_in("", test);
    }

    /// Like [`World::run`], with a world that serves `public/` of this folder over TLS, with the certificate and the key in
    /// the folder.
    pub(super) fn run_with_files(folder: &Path, test: impl AsyncFnOnce() + Send + 'static) {
        Self::run_in(folder.to_str().unwrap(), test);
    }

    fn run_in(folder: &str, test: impl AsyncFnOnce() + Send + 'static) {
        let folder = folder.to_owned();
        let ran = std::thread::spawn(move || {
            let mut world = World::create();
            let namespace = File::open(format!("/run/netns/{}", world.machine)).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let (machine, outside) = (world.machine.clone(), world.outside.clone());
            world.start_server(&machine, &["machine", ""]);
            world.start_server(&outside, &[&["world", &folder], &NAMES[..]].concat());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test());
        });
        if let Err(panic) = ran.join() {
            std::panic::resume_unwind(panic);
        }
    }

    /// Like [`World::run`], on a machine whose /etc/resolv.conf is this file.
    pub(super) fn run_with_resolv_conf(file: PathBuf, test: impl AsyncFnOnce() + Send + 'static) {
        Self::run(async move || {
            // SAFETY: no descriptor table is unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            mount_bind(&file, "/etc/resolv.conf").unwrap();
            test().await;
        });
    }

    fn create() -> Self {
        let world =
            Self { machine: unique_name("machine"), outside: unique_name("world"), servers: Vec::new() };
        let (machine, outside) = (&world.machine, &world.outside);
        ip(&["netns", "add", machine]);
        ip(&["netns", "add", outside]);
        ip(&["-n", machine, "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", outside]);
        for (namespace, link) in [(machine, "lo"), (machine, "up0"), (outside, "lo"), (outside, "down0")] {
            ip(&["-n", namespace, "link", "set", link, "up"]);
        }
        ip(&["-n", machine, "address", "add", "203.0.113.1/24", "dev", "up0"]);
        for address in ADDRESSES {
            ip(&["-n", outside, "address", "add", address, "dev", "down0"]);
        }
        for network in ["10.9.0.0/24", "169.254.0.0/16"] {
            ip(&["-n", machine, "route", "add", network, "dev", "up0"]);
        }
        world
    }

    fn start_server(&mut self, namespace: &str, arguments: &[&str]) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "/usr/bin/python3", SERVER]).args(arguments);
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready.trim(), "ready", "{arguments:?}");
        self.servers.push(server);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        for namespace in [&self.machine, &self.outside] {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).output().unwrap();
    assert!(done.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}
