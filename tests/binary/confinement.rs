//! The confinement of the server and of the VMMs, seen from outside, and the limits of keys that are bound to a VM.

mod roots;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Skep, eventually, send, status_field, step, temp_dir};

/// What the descriptors of a process lead to.
fn descriptors(pid: u32) -> Vec<String> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let target = |path: PathBuf| fs::read_link(path).ok().map(|target| target.display().to_string());
    folder.filter_map(|entry| target(entry.path())).collect()
}

fn pid_of(vm: &Value) -> u32 {
    u32::try_from(vm["pid"].as_u64().unwrap()).unwrap()
}

/// A server with variables that it must not know, and with a log that names its confinement.
async fn server_among_secrets() -> Skep {
    Skep::start_as(temp_dir(), |command| {
        command
            .env("SKEP_API_KEY", "a secret")
            .env("AWS_SECRET_ACCESS_KEY", "another")
            .env("LANG", "C.UTF-8")
            .env("NOTIFY_SOCKET", "/run/skep-test-of-nobody")
            .env_remove("SSL_CERT_FILE")
            .env_remove("SSL_CERT_DIR")
            .args(["--log-level", "skep=debug"]);
    })
    .await
}

#[tokio::test]
async fn server_and_vmms_hold_what_they_need_and_nothing_else() {
    let skep = server_among_secrets().await;
    let vms = skep.boot(2).await;
    step("Landlock", async { is_confined(&skep) }).await;
    step("memory of the server", async { memory_of_the_server(&skep) }).await;
    step("system calls of the server", async { filters_of_system_calls(&skep) }).await;
    step("descriptors of the server", async { descriptors_of_the_server(&skep) }).await;
    step("environment", async { environment(&skep, pid_of(&vms[0])) }).await;
    step("descriptors of VMMs", async { descriptors_of_vmms(&skep, &vms) }).await;
    step("memory of VMMs", async { memory_of_vmms(&vms) }).await;
}

#[tokio::test]
async fn with_the_rules_of_an_older_kernel_a_swarm_does_the_same() {
    let skep = Skep::start_as(temp_dir(), |command| {
        command.env("SKEP_LANDLOCK_ABI", "2").args(["--log-level", "skep=debug"]);
    })
    .await;
    is_confined(&skep);
    let health = skep.health().await;
    assert_eq!(health["status"], "ok", "{health}");
    let vms = skep.boot(2).await;
    for vm in &vms {
        let pid = vm["pid"].as_u64().unwrap();
        assert_eq!(skep.output(pid, "echo 'in it' | tr a-z A-Z").await, "IN IT");
        assert!(skep.get(&format!("/api/swarm/vm/{pid}/console")).await.ok(200)["console"].is_string());
    }
    skep.post("/api/keys", &json!({"name": "x", "role": "agent"})).await.ok(201);
    skep.delete(&format!("/api/swarm/vm/{}", vms[0]["pid"])).await.ok(200);
    assert_eq!(skep.post("/api/swarm/cleanup", &json!({})).await.ok(200)["terminated"], 1);
}

/// The version of Landlock that this kernel has, -1 where there is none.
pub(crate) fn landlock_version() -> i32 {
    // `landlock_create_ruleset` with a flag that asks for it.
    let script = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))";
    let asked = Command::new("python3").args(["-c", script]).output().unwrap();
    String::from_utf8(asked.stdout).unwrap().trim().parse().unwrap()
}

/// The server has its rules if the kernel has Landlock.
fn is_confined(skep: &Skep) {
    let version = landlock_version();
    assert_eq!(skep.log().contains("confined by Landlock"), version > 0, "{version}: {}", skep.log());
}

/// The kernel must not merge equal pages of guests: the time of a write would tell one guest what another one has in memory.
fn memory_of_vmms(vms: &[Value]) {
    for vm in vms {
        let text = fs::read_to_string(format!("/proc/{}/smaps", pid_of(vm))).unwrap();
        let mut guest_memory = 0;
        let mut mapping = "";
        for line in text.lines() {
            match line.strip_prefix("VmFlags: ") {
                // The first line of a mapping names its file.
                None if line.contains("/memfd:skep-") => mapping = line,
                None if line.contains('-') => mapping = "",
                Some(flags) if !mapping.is_empty() => {
                    guest_memory += 1;
                    assert!(!flags.split(' ').any(|flag| flag == "mg"), "{mapping}: {flags}");
                }
                _ => {}
            }
        }
        assert!(guest_memory > 0, "{text}");
    }
}

fn environment(skep: &Skep, vmm: u32) {
    let environment = fs::read_to_string(format!("/proc/{}/environ", skep.server_pid().unwrap())).unwrap();
    let names: Vec<&str> = environment.split('\0').filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.contains(&"LANG"), "{names:?}");
    let expected = ["PATH", "LANG", "TZ", "RUST_BACKTRACE", "SKEP_LANDLOCK_ABI"];
    assert!(names.iter().all(|name| expected.contains(name)), "{names:?}");
    // Nor does a VMM. Only what its guest's memory needs.
    let environment = fs::read_to_string(format!("/proc/{vmm}/environ")).unwrap();
    assert_eq!(environment, "LD_PRELOAD=/proc/self/fd/12\0SKEP_RAM_FD=7\0");
}

fn memory_of_the_server(skep: &Skep) {
    let server = skep.server_pid().unwrap();
    // Memory, environment and descriptors of a process that is not dumpable belong to root.
    for file in ["environ", "mem", "fd", "maps"] {
        assert_eq!(fs::metadata(format!("/proc/{server}/{file}")).unwrap().uid(), 0, "{file}");
    }
    // The control: the process itself is not root's.
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    assert!(!status.lines().any(|line| line.starts_with("Uid:\t0")), "{status}");
}

/// The calls that they deny are tested where the confinement is (`crates/server/tests/confine.rs`).
fn filters_of_system_calls(skep: &Skep) {
    let filters = |pid: u32| status_field(pid, "Seccomp_filters").parse::<u32>().unwrap();
    assert_eq!(filters(skep.server_pid().unwrap()), filters(skep.pid()) + 2);
}

fn descriptors_of_the_server(skep: &Skep) {
    let open = descriptors(skep.server_pid().unwrap());
    let data_dir = fs::canonicalize(skep.data_dir.path()).unwrap();
    let own = data_dir.join("server");
    assert!(open.iter().any(|path| Path::new(path).starts_with(&own)), "the control: its store: {open:?}");
    for path in open.iter().filter(|path| path.starts_with('/')) {
        let of_others = Path::new(path).starts_with(&data_dir) && !Path::new(path).starts_with(&own);
        let device = path.starts_with("/dev/") && path != "/dev/null";
        let kernel = path.starts_with("/sys/") || path.starts_with("/run/");
        // Its words go to this file, which was open before it was confined.
        let log = path.ends_with("test.log");
        assert!(log || !(of_others || device || kernel), "{path} is open: {open:?}");
    }
}

fn descriptors_of_vmms(skep: &Skep, vms: &[Value]) {
    let folder = fs::canonicalize(skep.data_dir.path()).unwrap().join("keeper/layers");
    let layers: Vec<(u64, u64)> = vms.iter().flat_map(|vm| layers_of(pid_of(vm))).collect();
    assert_eq!(layers.len(), 2, "one private layer each: {layers:?}");
    assert_ne!(layers[0], layers[1]);
    for vm in vms {
        let open = descriptors(pid_of(vm));
        let of_template = ["kernel", "initrd", "root.erofs"];
        for path in &open {
            let template = path.starts_with('/') && of_template.iter().any(|name| path.ends_with(name));
            let known = template
                || path.starts_with("socket:")
                || path.starts_with("pipe:")
                || path.starts_with("anon_inode:")
                || path.starts_with("/memfd:")
                || ["/dev/null", "/dev/net/tun", "/dev/kvm"].contains(&path.as_str())
                || (path.ends_with(" (deleted)") && Path::new(path).starts_with(&folder));
            assert!(known, "{path} is open: {open:?}");
        }
        // The template is shared, so it must not be writable.
        for (path, flags) in flags(pid_of(vm)) {
            let writable = flags & 0o3 != 0;
            let template = of_template.iter().any(|name| path.ends_with(name));
            assert!(!(template && writable), "{path} is writable");
        }
    }
}

/// Device and inode of the files without a name that a process may write to: its disk layer.
fn layers_of(pid: u32) -> Vec<(u64, u64)> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let unnamed = |path: &Path| {
        let target = fs::read_link(path).unwrap_or_default().display().to_string();
        target.ends_with(" (deleted)") && !target.starts_with("/memfd:")
    };
    let mut found: Vec<(u64, u64)> = folder
        .filter(|entry| unnamed(&entry.path()))
        .map(|entry| fs::metadata(entry.path()).unwrap())
        .map(|file| (file.dev(), file.ino()))
        .collect();
    // QEMU keeps a copy of a descriptor that it was handed.
    found.sort_unstable();
    found.dedup();
    found
}

/// Each descriptor's target and the flags that it was opened with.
fn flags(pid: u32) -> Vec<(String, u32)> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let read = |number: &str| {
        let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?.display().to_string();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        Some((target, u32::from_str_radix(flags, 8).unwrap()))
    };
    folder.filter_map(|entry| read(entry.file_name().to_str()?)).collect()
}

async fn as_key(skep: &Skep, key: &Value, method: Method, path: &str, body: &Value) -> Answer {
    send(skep.bare(method, path).bearer_auth(key.as_str().unwrap()).json(body)).await
}

#[tokio::test]
async fn a_key_of_a_vm_reaches_that_vm_alone_and_a_key_ends_with_all_that_it_began() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let other = vms[1]["pid"].as_u64().unwrap();
    // It ends the first VM.
    step("a key of a VM", a_key_reaches_its_vm_alone(&skep, &vms)).await;
    step("a revoked key and its stream", a_revoked_key_ends_a_flood(&skep, other)).await;
    step("the key of a VM that ends by itself", a_key_ends_with_its_vm(&skep, other)).await;
}

async fn a_key_reaches_its_vm_alone(skep: &Skep, vms: &[Value]) {
    let [own, other] = [0, 1].map(|at| vms[at]["pid"].as_u64().unwrap());
    let made = skep.post("/api/keys", &json!({"name": "of-vm", "role": "vm", "vm": own})).await.ok(201);
    assert_eq!(made["vm"], vms[0]["id"]);
    let key = &made["key"];
    let exec = |vm: String| format!("/api/swarm/vm/{vm}/exec");
    let hostname = json!({"command": "hostname"});
    for name in [own.to_string(), vms[0]["id"].as_str().unwrap().to_owned()] {
        let ran = as_key(skep, key, Method::POST, &exec(name), &hostname).await.ok(200);
        assert_eq!(ran["stdout"].as_str().unwrap().trim_end(), skep.output(own, "hostname").await);
    }
    let none = as_key(skep, key, Method::POST, &exec("4194303".to_owned()), &hostname).await;
    for name in [other.to_string(), vms[1]["id"].as_str().unwrap().to_owned()] {
        let refused = as_key(skep, key, Method::POST, &exec(name.clone()), &hostname).await;
        let message = refused.refused(404, "unknown_vm");
        // In the words of what does not exist.
        let expected = none.refused(404, "unknown_vm").replace("4194303", &name);
        assert_eq!(message, expected);
    }
    let body = json!({"vm": other, "command": "id"});
    as_key(skep, key, Method::POST, "/api/exec", &body).await.refused(404, "unknown_vm");
    files_and_git_by_the_key_of_a_vm(skep, key, own, other).await;
    for (method, path) in [
        (Method::GET, "/api/swarm/status".to_owned()),
        (Method::DELETE, format!("/api/swarm/vm/{own}")),
        (Method::POST, "/api/swarm/boot".to_owned()),
        (Method::GET, "/api/keys".to_owned()),
    ] {
        as_key(skep, key, method, &path, &json!({})).await.refused(403, "vm_key_limited");
    }
    let me = as_key(skep, key, Method::GET, "/api/whoami", &json!({})).await.ok(200);
    assert_eq!(me["vm"], vms[0]["id"]);

    skep.delete(&format!("/api/swarm/vm/{own}")).await.ok(200);
    let refused = as_key(skep, key, Method::GET, "/api/whoami", &json!({})).await;
    assert_eq!(refused.refused(403, "token_expired"), "Token expired");
}

async fn files_and_git_by_the_key_of_a_vm(skep: &Skep, key: &Value, own: u64, other: u64) {
    for (method, path, body, status) in [
        (Method::POST, "/api/git/init", json!({"path": "/root/made"}), 201),
        (Method::POST, "/api/files/write", json!({"path": "/root/made/file", "content": ""}), 201),
        (Method::GET, "/api/git/status?path=/root/made", Value::Null, 200),
        (Method::GET, "/api/files/read?path=/root/made/file", Value::Null, 200),
    ] {
        let ask = async |vm: u64| {
            let (mut path, mut body) = (path.to_owned(), body.clone());
            match &mut body {
                Value::Null => path.push_str(&format!("&vm={vm}")),
                body => body["vm"] = json!(vm),
            }
            as_key(skep, key, method.clone(), &path, &body).await
        };
        ask(other).await.refused(404, "unknown_vm");
        ask(own).await.ok(status);
    }
}

async fn a_key_ends_with_its_vm(skep: &Skep, pid: u64) {
    let made =
        skep.post("/api/keys", &json!({"name": "of-vm-that-ends", "role": "vm", "vm": pid})).await.ok(201);
    skep.post(&format!("/api/swarm/vm/{pid}/exec"), &json!({"command": "poweroff; sleep 60"})).await;
    eventually("the key's end", async || {
        let me = as_key(skep, &made["key"], Method::GET, "/api/whoami", &json!({})).await;
        me.status == 403 && me.body["message"] == "Token expired"
    })
    .await;
}

async fn a_revoked_key_ends_a_flood(skep: &Skep, pid: u64) {
    let made = skep.post("/api/keys", &json!({"name": "flood", "role": "agent"})).await.ok(201);
    let flood = skep
        .bare(Method::POST, &format!("/api/swarm/vm/{pid}/exec"))
        .bearer_auth(made["key"].as_str().unwrap())
        .json(&json!({"command": "yes", "timeout": 600_000, "stream": true}));
    let mut flood = flood.send().await.unwrap();
    assert!(flood.chunk().await.unwrap().is_some());
    skep.delete(&format!("/api/keys/{}", made["id"].as_str().unwrap())).await.ok(200);
    let mut last = Vec::new();
    let read = async {
        while let Some(chunk) = flood.chunk().await.unwrap() {
            last = [&last[last.len().saturating_sub(1000)..], &chunk].concat();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.unwrap();
    let last = String::from_utf8_lossy(&last);
    assert!(last.contains("event: error") && last.contains("Token expired"), "{last}");
    eventually("the command's end", async || skep.exec(pid, "pgrep -x yes").await["exit_code"] == 1).await;
}
