//! Requests for resources of another account are answered like requests for unknown resources.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Skep, Tenant};

/// No process has it: the kernel's numbers end below.
const NO_PID: &str = "4194304";
const NO_ID: &str = "vm_01jv0000000000000000000000";

/// An operation on a VM. `VM` is the VM as text, `"VM#"` as it stands in JSON: a number where it is one.
struct Operation {
    method: Method,
    path: &'static str,
    body: &'static str,
}

const fn operation(method: Method, path: &'static str, body: &'static str) -> Operation {
    Operation { method, path, body }
}

/// Every operation on a VM, in the order in which its owner carries them out.
const OPERATIONS: &[Operation] = &[
    operation(Method::GET, "/api/swarm/vm/VM", ""),
    operation(Method::GET, "/api/swarm/vm/VM/console", ""),
    operation(Method::GET, "/api/swarm/vm/VM/metrics", ""),
    operation(Method::GET, "/api/swarm/vm/VM/egress", ""),
    operation(Method::POST, "/api/swarm/vm/VM/pause", "{}"),
    operation(Method::POST, "/api/swarm/vm/VM/resume", "{}"),
    operation(Method::POST, "/api/swarm/vm/VM/fork", "{}"),
    operation(Method::POST, "/api/swarm/vm/VM/snapshot", r#"{"name": "touched"}"#),
    operation(Method::PATCH, "/api/swarm/vm/VM", r#"{"metadata": {"touched": true}}"#),
    operation(Method::PATCH, "/api/swarm/vm/VM", r#"{"ttl_ms": 600000}"#),
    operation(Method::PATCH, "/api/swarm/vm/VM", "{}"),
    operation(Method::POST, "/api/swarm/vm/VM/exec", r#"{"command": "touch /root/touched"}"#),
    operation(Method::POST, "/api/swarm/vm/VM/exec", r#"{"command": "true", "stream": true}"#),
    operation(Method::POST, "/api/exec", r#"{"command": "touch /root/touched", "vm": "VM#"}"#),
    operation(Method::POST, "/api/exec", r#"{"command": "true", "vm": "VM#", "stream": true}"#),
    operation(Method::GET, "/api/exec?vm=VM", ""),
    operation(Method::GET, "/api/swarm/vm/VM/exec", ""),
    operation(Method::GET, "/api/swarm/vm/VM/exec/EXEC", ""),
    operation(Method::GET, "/api/swarm/vm/VM/exec/EXEC?stdout=1&stderr=0", ""),
    operation(Method::POST, "/api/keys", r#"{"name": "bound", "role": "vm", "vm": "VM#"}"#),
    operation(Method::DELETE, "/api/swarm/vm/VM", ""),
];

const WATCH: &str = "/api/files/watch?path=/root&vm=VM";

/// Every operation on files and repositories in a VM. Most name a repository that does not exist, because git starts slowly in
/// an emulated guest.
const IN_A_VM: &[Operation] = &[
    operation(Method::GET, "/api/files/read?path=/etc/hostname&vm=VM", ""),
    operation(Method::GET, "/api/files/search?path=/root&pattern=x&vm=VM", ""),
    operation(Method::GET, "/api/files/grep?path=/root&pattern=x&vm=VM", ""),
    operation(Method::GET, WATCH, ""),
    operation(Method::GET, "/api/ls?path=/root&vm=VM", ""),
    operation(Method::PUT, "/api/files/raw?path=/root/touched-raw&vm=VM", ""),
    operation(Method::POST, "/api/files/write", r#"{"path": "/root/touched", "content": "", "vm": "VM#"}"#),
    operation(
        Method::POST,
        "/api/files/link",
        r#"{"path": "/root/touched-link", "target": "x", "vm": "VM#"}"#,
    ),
    operation(
        Method::POST,
        "/api/files/copy",
        r#"{"from": "/root/touched", "to": "/root/touched-2", "vm": "VM#"}"#,
    ),
    operation(
        Method::POST,
        "/api/files/move",
        r#"{"from": "/root/touched", "to": "/root/touched-3", "vm": "VM#"}"#,
    ),
    operation(Method::POST, "/api/mkdir", r#"{"path": "/root/touched-folder", "vm": "VM#"}"#),
    operation(Method::DELETE, "/api/files?path=/root/touched-raw&vm=VM", ""),
    operation(Method::GET, "/api/git/repositories?vm=VM", ""),
    operation(Method::GET, "/api/git/status?path=/root/none&vm=VM", ""),
    operation(Method::GET, "/api/git/branch?path=/root/none&vm=VM", ""),
    operation(Method::GET, "/api/git/diff?path=/root/none&vm=VM", ""),
    operation(Method::GET, "/api/git/log?path=/root/none&vm=VM", ""),
    operation(Method::GET, "/api/git/remote?path=/root/none&vm=VM", ""),
    operation(Method::GET, "/api/git/show?path=/root/none&vm=VM", ""),
    operation(Method::GET, "/api/git/tag?path=/root/none&vm=VM", ""),
    operation(Method::GET, "/api/git/worktree?path=/root/none&vm=VM", ""),
    operation(Method::POST, "/api/git/add", r#"{"path": "/root/none", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/branch", r#"{"path": "/root/none", "name": "x", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/checkout", r#"{"path": "/root/none", "ref": "x", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/commit", r#"{"path": "/root/none", "message": "x", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/fetch", r#"{"path": "/root/none", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/merge", r#"{"path": "/root/none", "ref": "x", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/pull", r#"{"path": "/root/none", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/push", r#"{"path": "/root/none", "vm": "VM#"}"#),
    operation(
        Method::POST,
        "/api/git/remote",
        r#"{"path": "/root/none", "name": "x", "url": "/x", "vm": "VM#"}"#,
    ),
    operation(Method::POST, "/api/git/reset", r#"{"path": "/root/none", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/stash", r#"{"path": "/root/none", "action": "push", "vm": "VM#"}"#),
    operation(Method::POST, "/api/git/tag", r#"{"path": "/root/none", "name": "x", "vm": "VM#"}"#),
    operation(
        Method::POST,
        "/api/git/worktree",
        r#"{"path": "/root/none", "worktree": "/root/touched-tree", "vm": "VM#"}"#,
    ),
    operation(
        Method::POST,
        "/api/git/clone",
        r#"{"url": "/root/none", "path": "/root/touched-clone", "vm": "VM#"}"#,
    ),
    operation(
        Method::POST,
        "/api/git/clone",
        r#"{"url": "/root/none", "from": "VM#", "path": "ROOT/touched-clone"}"#,
    ),
    operation(Method::POST, "/api/git/init", r#"{"path": "/root/touched-repository", "vm": "VM#"}"#),
];

impl Operation {
    /// The answer, without the named value and without the parts that differ in every answer.
    async fn carry_out(&self, by: &Tenant<'_>, vm: &str, exec: &str) -> (u16, String) {
        let in_json = if vm.starts_with("vm_") { format!("{vm:?}") } else { vm.to_owned() };
        let path = self.path.replace("VM", vm).replace("EXEC", exec);
        let mut request = by.request(self.method.clone(), &path).header("x-request-id", "same");
        if !self.body.is_empty() {
            let mut body = self.body.replace("\"VM#\"", &in_json);
            if body.contains("ROOT") {
                let whoami = by.get("/api/whoami").await.ok(200);
                body = body.replace("ROOT", whoami["roots"][0].as_str().unwrap());
            }
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let mut headers: Vec<String> = response
            .headers()
            .iter()
            .filter(|(name, _)| !["date", "content-length"].contains(&name.as_str()))
            .map(|(name, value)| format!("{name}: {value:?}"))
            .collect();
        headers.sort();
        let body = response.text().await.unwrap().replace(vm, "NAMED");
        (status, format!("{}\n\n{body}", headers.join("\n")))
    }
}

/// Whether an operation of the document names a VM: in its path, by a parameter, or in its body.
fn takes_a_vm(document: &Value, path: &str, operation: &Value) -> bool {
    let mut parameters = operation["parameters"].as_array().into_iter().flatten();
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    let schema = reference.and_then(|pointer| document.pointer(pointer)).unwrap_or(schema);
    // The log of a ticket belongs to the ticket; its `vm` may be the id of a VM that has ended.
    let is_of_vm = path.contains("{pid}") || parameters.any(|parameter| parameter["name"] == "vm");
    (is_of_vm && path != "/api/tickets/{id}/log") || schema["properties"]["vm"].is_object()
}

/// Operations of the document that take a VM and have no row in the tables of this file.
async fn operations_without_a_row(skep: &Skep) -> Vec<String> {
    let document = skep.get("/api/openapi.json").await.ok(200);
    let mut missing = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, described) in item.as_object().unwrap() {
            let tried = OPERATIONS.iter().chain(IN_A_VM).any(|operation| {
                let tried = operation.path.split('?').next().unwrap();
                tried.replace("VM", "{pid}").replace("EXEC", "{exec_id}") == *path
                    && operation.method.as_str().eq_ignore_ascii_case(method)
            });
            if takes_a_vm(&document, path, described) && !tried {
                missing.push(format!("{method} {path}"));
            }
        }
    }
    missing
}

/// A streamed command of its owner, for others to ask for, and its id. It runs until its stream is dropped.
async fn streamed(owner: &Tenant<'_>, vm: &str) -> (reqwest::Response, String) {
    let request = owner.request(Method::POST, &format!("/api/swarm/vm/{vm}/exec"));
    let request =
        request.json(&json!({"command": "echo secret; sleep 3000", "stream": true, "timeout": 600_000}));
    let response = request.send().await.unwrap();
    let id = response.headers()["skep-exec-id"].to_str().unwrap().to_owned();
    (response, id)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The control: the owner reaches the VM with each operation. Most git operations answer that there is no repository.
async fn reaches_files_and_repositories(owner: &Tenant<'_>, vm: &str) {
    let watch = owner.request(Method::GET, &WATCH.replace("VM", vm)).send().await.unwrap();
    assert_eq!(watch.status(), 200);
    drop(watch);
    for operation in IN_A_VM.iter().filter(|operation| operation.path != WATCH) {
        let (status, answer) = operation.carry_out(owner, vm, "").await;
        let is_about_a_repository = operation.path.starts_with("/api/git/");
        let done = matches!(status, 200 | 201) || is_about_a_repository;
        assert!(done && !answer.contains("unknown_vm"), "{} {}: {answer}", operation.method, operation.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_vm_is_answered_as_one_that_does_not_exist() {
    let skep = Skep::start().await;
    assert_eq!(operations_without_a_row(&skep).await, Vec::<String>::new());
    let (owner, stranger) = (skep.tenant("acme").await, skep.tenant("other").await);
    let vm = owner.boot().await;
    let (pid, id) = (text(&vm["pid"]), text(&vm["id"]));
    let (stream, exec) = streamed(&owner, &pid).await;
    // The account `default` administers the server, and is a stranger to the VMs of others all the same.
    let administrator = Tenant { skep: &skep, id: String::new(), key: skep.key.clone() };
    for caller in [&stranger, &administrator] {
        for (foreign, nobody) in [(&pid, NO_PID), (&id, NO_ID)] {
            for operation in OPERATIONS.iter().chain(IN_A_VM) {
                let of_foreign = operation.carry_out(caller, foreign, &exec).await;
                let of_nobody = operation.carry_out(caller, nobody, &exec).await;
                assert_eq!(
                    of_foreign, of_nobody,
                    "{} {} {}",
                    operation.method, operation.path, operation.body
                );
                assert_eq!(of_foreign.0, 404, "{of_foreign:?}");
                assert!(of_foreign.1.contains("skep-error: \"unknown_vm\""), "{of_foreign:?}");
            }
        }
        let status = caller.get("/api/swarm/status").await.ok(200);
        assert_eq!((&status["vms"], &status["count"]), (&json!([]), &json!(0)), "{status}");
        assert_eq!(caller.post("/api/swarm/cleanup", &json!({})).await.ok(200), json!({"terminated": 0}));
        assert!(!status.to_string().contains(&id));
        let samples = caller.get("/api/swarm/metrics").await.ok(200);
        assert!(!samples.to_string().contains(&id), "{samples}");
    }
    // Nothing of it came through.
    let now = owner.get(&format!("/api/swarm/vm/{id}")).await.ok(200);
    assert_eq!((&now["metadata"], &now["expires_at"]), (&json!({}), &Value::Null), "{now}");
    let look = json!({"command": "ls -A /root"});
    let seen = owner.post(&format!("/api/swarm/vm/{pid}/exec"), &look).await.ok(200);
    assert!(!text(&seen["stdout"]).contains("touched"), "{seen}");
    // The control: its owner carries out every one of them. Coming back takes the stream over.
    drop(stream);
    reaches_files_and_repositories(&owner, &id).await;
    for operation in OPERATIONS.iter().filter(|operation| !operation.path.contains("EXEC")) {
        let (status, answer) = operation.carry_out(&owner, &id, "").await;
        // A WebSocket that the request does not ask for is refused behind the check of the VM.
        let done = matches!(status, 200 | 201) || answer.contains("upgrade_required");
        assert!(done, "{} {}: {answer}", operation.method, operation.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_owner_comes_back_to_a_command() {
    let skep = Skep::start().await;
    let (owner, stranger) = (skep.tenant("acme").await, skep.tenant("other").await);
    let (vm, theirs) = (owner.boot().await, stranger.boot().await);
    let (pid, their_pid) = (text(&vm["pid"]), text(&theirs["pid"]));
    let (_stream, exec) = streamed(&owner, &pid).await;
    // Neither by the VM that it runs in, nor by one of the caller's own.
    for (vm, code) in [(&pid, "unknown_vm"), (&their_pid, "unknown_exec")] {
        let answer = stranger.get(&format!("/api/swarm/vm/{vm}/exec/{exec}")).await;
        let message = answer.refused(404, code).to_owned();
        let nobody =
            stranger.get(&format!("/api/swarm/vm/{vm}/exec/{}", exec.replace(|_: char| true, "0"))).await;
        let of_nobody = nobody.refused(404, code).replace(&"0".repeat(exec.len()), &exec);
        assert_eq!(message, of_nobody);
    }
    let path = format!("/api/swarm/vm/{pid}/exec/{exec}");
    let mut back = owner.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(back.status(), 200);
    let mut received = String::new();
    while !received.contains("secret") {
        received.push_str(&String::from_utf8_lossy(&back.chunk().await.unwrap().unwrap()));
    }
}
