//! Operations on VMs and their processes.

use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::Method;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use super::{Skep, leftovers};
use crate::{eventually, process::stop};

impl Skep {
    /// Boots VMs and returns their records.
    pub async fn boot(&self, count: u32) -> Vec<Value> {
        let answer = self.post("/api/swarm/boot", &json!({"count": count})).await.ok(201);
        let vms = answer["vms"].as_array().unwrap().clone();
        assert_eq!(vms.len(), count as usize, "{answer}");
        vms
    }

    /// Boots one VM and returns its process id.
    pub async fn boot_one(&self) -> u64 {
        self.boot(1).await[0]["pid"].as_u64().unwrap()
    }

    /// Runs a command in a VM and returns the answer, which must be 200.
    pub async fn exec(&self, pid: u64, command: &str) -> Value {
        // Emulated guests on a busy machine may take longer than the default of a minute.
        self.exec_with(pid, &json!({"command": command, "timeout": 240_000})).await
    }

    /// Runs a command in a VM by a complete request.
    pub async fn exec_with(&self, pid: u64, request: &Value) -> Value {
        self.post(&format!("/api/swarm/vm/{pid}/exec"), request).await.ok(200)
    }

    /// Runs a command, which must succeed, and returns its output.
    pub async fn output(&self, pid: u64, command: &str) -> String {
        let answer = self.exec(pid, command).await;
        assert_eq!(answer["exit_code"], 0, "{command}: {answer}");
        answer["stdout"].as_str().unwrap().trim_end().to_owned()
    }

    /// The process id of the server: the keeper's child that is no VMM.
    pub fn server_pid(&self) -> Option<u32> {
        let keeper = self.pid();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
        let is_server = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.contains("server-process"))
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_server)
    }

    /// The process ids of the VMMs, also of parked VMs: the keeper's children except for the server.
    pub fn vmms(&self) -> Vec<u32> {
        let keeper = self.pid();
        let children =
            fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
        let is_vmm = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.contains("qemu-system"))
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_vmm).collect()
    }

    /// Stops the VMMs that there are now, except for some, and returns their process ids. Until they go on, no boot ends whose
    /// guest has not answered yet.
    pub fn stop_vmms_except(&self, kept: &[u32]) -> Vec<u32> {
        let mut vmms = self.vmms();
        vmms.retain(|pid| !kept.contains(pid));
        vmms.iter().copied().for_each(stop);
        vmms
    }

    /// Waits until a server with another process id serves.
    pub async fn wait_for_server_after(&self, before: u32) {
        eventually("another server", async || self.server_pid().is_some_and(|pid| pid != before)).await;
        eventually("its service", async || {
            let asked = self.request(Method::GET, "/api/swarm/status").send().await;
            matches!(asked, Ok(answer) if answer.status() == 200)
        })
        .await;
    }

    /// The number of VMs that have not ended.
    pub async fn count(&self) -> u64 {
        self.get("/api/swarm/status").await.ok(200)["count"].as_u64().unwrap()
    }

    /// The network namespace of the VMs.
    pub fn namespace(&self) -> String {
        format!("skep-{}", leftovers::instance_name(self.data_dir.path()))
    }

    /// The control groups of a VM, one in each hierarchy.
    pub fn groups_of(&self, vm: &str) -> Vec<PathBuf> {
        let group = PathBuf::from(self.namespace()).join(vm);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let cgroups = mounts.lines().filter(|line| line.contains(" - cgroup"));
        let points = cgroups.filter_map(|line| line.split(' ').nth(4));
        points.map(|point| Path::new(point).join(&group)).filter(|group| group.is_dir()).collect()
    }

    /// Waits until a VM has ended.
    pub async fn wait_for_end_of(&self, pid: u64) {
        let path = format!("/api/swarm/vm/{pid}");
        eventually("the VM's end", async || self.get(&path).await.status == 404).await;
    }
}

/// Connects from inside a network namespace.
pub async fn connect_in_namespace(namespace: &str, to: SocketAddr) -> io::Result<TcpStream> {
    let namespace = File::open(format!("/run/netns/{namespace}"))?;
    let connect = move || {
        // In a separate thread, because a thread's namespace changes for good.
        std::thread::spawn(move || {
            move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(LinkNameSpaceType::Network),
            )?;
            // An emulated guest on a busy machine may answer late.
            TcpStream::connect_timeout(&to, Duration::from_secs(60))
        })
        .join()
        .unwrap()
    };
    tokio::task::spawn_blocking(connect).await.unwrap()
}
