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

/// Every operation that names a VM, in the order in which its owner carries them out.
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

impl Operation {
    /// The answer, without the named value and without the parts that differ in every answer.
    async fn carry_out(&self, by: &Tenant<'_>, vm: &str, exec: &str) -> (u16, String) {
        let in_json = if vm.starts_with("vm_") { format!("{vm:?}") } else { vm.to_owned() };
        let path = self.path.replace("VM", vm).replace("EXEC", exec);
        let mut request = by.request(self.method.clone(), &path).header("x-request-id", "same");
        if !self.body.is_empty() {
            let body = self.body.replace("\"VM#\"", &in_json);
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

/// What the document promises of VMs, and this file's table lacks.
async fn operations_without_a_row(skep: &Skep) -> Vec<String> {
    let document = skep.get("/api/openapi.json").await.ok(200);
    let mut missing = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let takes_a_vm = path.contains("{pid}") || path == "/api/exec";
            let tried = OPERATIONS.iter().any(|operation| {
                let tried = operation.path.split('?').next().unwrap();
                tried.replace("VM", "{pid}").replace("EXEC", "{exec_id}") == *path
                    && operation.method.as_str().eq_ignore_ascii_case(method)
            });
            if takes_a_vm && !tried {
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
            for operation in OPERATIONS {
                let of_foreign = operation.carry_out(caller, foreign, &exec).await;
                let of_nobody = operation.carry_out(caller, nobody, &exec).await;
                assert_eq!(
                    of_foreign, of_nobody,
                    "{} {} {}",
                    operation.method, operation.path, operation.body
                );
                assert_eq!(of_foreign.0, 404, "{of_foreign:?}");
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
