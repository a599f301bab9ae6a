//! The API for VMs that have a key: reachable at SKEP_URL, with that key, by that VM only.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::blocks_of_guide;

use crate::{
    harness::{Skep, eventually, eventually_within, kill, send, temp_dir},
    pool::FILL_TIMEOUT,
    spoofing::in_namespace,
};

/// The guide's example of what a command does in a ticket's VM.
fn guide_example() -> &'static str {
    let mut found =
        blocks_of_guide().filter(|block| block.contains("\"$SKEP_URL/api/tickets/$SKEP_TICKET_ID\""));
    let example = found.next().unwrap();
    assert!(found.next().is_none());
    example
}

/// A VM that works on a ticket.
struct Worker {
    pid: u64,
    ip: String,
    ticket: String,
    key: String,
}

/// Two VMs that work on tickets: one out of a pool of one VM, and one that is restored for its boot.
async fn workers(skep: &Skep) -> [Worker; 2] {
    let mut found = None;
    eventually("a VM out of the pool and one that is restored", async || {
        let [one, other] = [ticket(skep).await, ticket(skep).await];
        // At once: the pool may be full again before a request that comes after the first one.
        let (one_vm, other_vm) = tokio::join!(boot_for(skep, &one), boot_for(skep, &other));
        let mut vms = [(one_vm, one), (other_vm, other)];
        vms.sort_by_key(|(vm, _)| vm["boot"]["source"] == "cold");
        let sources = [&vms[0].0["boot"]["source"], &vms[1].0["boot"]["source"]];
        let is_both = sources == ["pool", "cold"];
        if !is_both {
            for (vm, _) in &vms {
                skep.delete(&format!("/api/swarm/vm/{}", vm["pid"])).await.ok(200);
            }
        }
        found = Some(vms);
        is_both
    })
    .await;
    let [(one_vm, one), (other_vm, other)] = found.unwrap();
    [worker(skep, &one_vm, one).await, worker(skep, &other_vm, other).await]
}

async fn ticket(skep: &Skep) -> String {
    let made = skep.post("/api/tickets", &json!({"title": "from inside"})).await.ok(201);
    made["id"].as_str().unwrap().to_owned()
}

/// Boots a VM that can be used when its ticket is completed, too.
async fn boot_for(skep: &Skep, ticket: &str) -> Value {
    let boot = json!({"ticket": ticket, "keep_vm": true});
    skep.post("/api/swarm/boot", &boot).await.ok(201)["vms"][0].clone()
}

async fn worker(skep: &Skep, vm: &Value, ticket: String) -> Worker {
    let pid = vm["pid"].as_u64().unwrap();
    let key = skep.output(pid, "echo $SKEP_API_KEY").await;
    Worker { pid, ip: vm["ip"].as_str().unwrap().to_owned(), ticket, key }
}

/// The status that a VM gets for a request, or `000` where it makes no connection.
pub(crate) async fn status(skep: &Skep, pid: u64, url: &str, key: &str) -> String {
    // An answer may take long on a busy machine, or wait for the next server.
    status_within("--connect-timeout 10 -m 60", skep, pid, url, key).await
}

async fn status_within(limits: &str, skep: &Skep, pid: u64, url: &str, key: &str) -> String {
    let command = format!(
        "curl -s {limits} -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer {key}' {url}; true"
    );
    skep.output(pid, &command).await
}

/// Whether a VM makes no connection within some seconds, which an idle machine needs a small part of.
pub(crate) async fn is_silent(skep: &Skep, pid: u64, url: &str, key: &str) -> bool {
    status_within("--connect-timeout 4 -m 4", skep, pid, url, key).await == "000"
}

async fn whoami(skep: &Skep, pid: u64, key: &str) -> String {
    status(skep, pid, "${SKEP_URL}/api/whoami", key).await
}

/// The addresses that the packet filter lets reach the API.
fn callers(skep: &Skep) -> String {
    let namespace = skep.namespace();
    let list = ["netns", "exec", &namespace, "nft", "list", "set", "inet", "skep", "api_callers"];
    let output = std::process::Command::new("ip").args(list).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Opens many more connections than a VM may have, says on how many of them it was answered, and holds these.
const FLOOD: &str = r#"cat > /run/flood.py <<'END'
import os, socket, time, urllib.parse
url = urllib.parse.urlparse(os.environ["SKEP_URL"])
request = "GET /api/whoami HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + os.environ["SKEP_API_KEY"] + "\r\n\r\n"
held = []
for _ in range(100):
    try:
        one = socket.create_connection((url.hostname, url.port), 5)
        one.sendall(request.encode())
        if one.recv(15) == b"HTTP/1.1 200 OK": held.append(one)
    except OSError: pass
open("/run/held.new", "w").write(str(len(held)))
os.rename("/run/held.new", "/run/held")
time.sleep(600)
END
setsid python3 /run/flood.py >/dev/null 2>&1 </dev/null & echo $! > /run/flood.pid"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_reaches_the_api_with_its_own_key_and_no_other_vm_does() {
    let data_dir = temp_dir();
    // The idle connections of the flood must stay open until the test has looked at them.
    let skep = Skep::start_on(data_dir, &["--pool-size", "1", "--idle-timeout", "600s"]).await;
    eventually_within(FILL_TIMEOUT, "a full pool", async || {
        skep.get("/api/swarm/status").await.ok(200)["pool"]["base"]["ready"] == json!(1)
    })
    .await;
    let [first, second] = workers(&skep).await;
    let without = skep.boot(1).await.remove(0);
    let without_pid = without["pid"].as_u64().unwrap();

    finishes_its_ticket(&skep, &first).await;
    let url = skep.output(second.pid, "echo $SKEP_URL").await;
    reached_by_own_key_only(&skep, &first, &second).await;
    assert_eq!(skep.output(without_pid, "echo $SKEP_URL").await, "");
    let health = format!("{url}/api/health");
    let (without_is_silent, own) =
        tokio::join!(is_silent(&skep, without_pid, &health, ""), whoami(&skep, first.pid, &first.key));
    assert!(without_is_silent, "a VM without a key made a connection");
    assert_eq!(own, "200");
    takes_no_connections_of_others(&skep, &first, &second).await;

    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    assert_eq!(whoami(&skep, second.pid, &second.key).await, "200", "after a restart");
    let skep = killed(skep, &second, without_pid, &health).await;

    // The control of the one without: with a key the same request arrives.
    let key = json!({"name": "by hand", "role": "vm", "vm": without["id"]});
    let key = skep.post("/api/keys", &key).await.ok(201);
    let whoami_url = format!("{url}/api/whoami");
    assert_eq!(status(&skep, without_pid, &whoami_url, key["key"].as_str().unwrap()).await, "200");
    paused_to_disk(&skep, &without, &whoami_url, &key).await;
    not_admitted(&skep, &without["id"]).await;

    assert!(callers(&skep).contains(&second.ip));
    skep.delete(&format!("/api/swarm/vm/{}", second.pid)).await.ok(200);
    assert!(!callers(&skep).contains(&second.ip), "{}", callers(&skep));
}

/// As the guide says.
async fn finishes_its_ticket(skep: &Skep, worker: &Worker) {
    let path = format!("/api/tickets/{}", worker.ticket);
    assert_eq!(skep.get(&path).await.ok(200)["status"], "in_progress");
    let output = skep.output(worker.pid, guide_example()).await;
    assert!(output.contains("\"title\":\"from inside\""), "{output}");
    let record = skep.get(&path).await.ok(200);
    assert_eq!(record["status"], "completed", "{output}");
    let name = skep.output(worker.pid, "hostname").await;
    assert_eq!(record["result"], json!({"by": name}));
}

async fn reached_by_own_key_only(skep: &Skep, one: &Worker, other: &Worker) {
    let control = async |key: &str| {
        let answer = skep.bare(Method::GET, "/api/whoami").bearer_auth(key).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    };
    for (worker, key, expected) in [
        (one, &one.key, "200"),
        (other, &other.key, "200"),
        (one, &other.key, "403"),
        (other, &one.key, "403"),
        (one, &skep.key, "403"),
    ] {
        assert_eq!(whoami(skep, worker.pid, key).await, expected);
        control(key).await;
    }
    assert_eq!(whoami(skep, one.pid, "").await, "401");
    assert_eq!(status(skep, one.pid, "${SKEP_URL}/api/openapi.json", &one.key).await, "403");
}

async fn takes_no_connections_of_others(skep: &Skep, greedy: &Worker, other: &Worker) {
    skep.output(greedy.pid, FLOOD).await;
    let mut held = Value::Null;
    // An emulated guest on a busy machine takes long for so many connections.
    eventually_within(Duration::from_secs(240), "all that the flood gets", async || {
        held = skep.exec(greedy.pid, "cat /run/held").await;
        held["exit_code"] == 0
    })
    .await;
    assert_eq!(held["stdout"], "32", "{held}");
    let whoami_url = "${SKEP_URL}/api/whoami";
    let (greedy_is_silent, of_other) = tokio::join!(
        is_silent(skep, greedy.pid, whoami_url, &greedy.key),
        whoami(skep, other.pid, &other.key)
    );
    assert!(greedy_is_silent, "it has a further connection");
    assert_eq!(of_other, "200");
    assert_eq!(reqwest::get(format!("{}/", skep.url)).await.unwrap().status(), 200);
    skep.output(greedy.pid, "kill $(cat /run/flood.pid)").await;
    eventually("room for it", async || whoami(skep, greedy.pid, &greedy.key).await == "200").await;
}

/// What a VM reaches stays the same when server and keeper are killed.
async fn killed(skep: Skep, worker: &Worker, without: u64, health: &str) -> Skep {
    let server = skep.server_pid().unwrap();
    kill(server);
    skep.wait_for_server_after(server).await;
    assert_eq!(whoami(&skep, worker.pid, &worker.key).await, "200", "after the end of the server");
    let skep = skep.crash().start().await;
    let (own, without_is_silent) =
        tokio::join!(whoami(&skep, worker.pid, &worker.key), is_silent(&skep, without, health, ""));
    assert_eq!(own, "200", "after the end of the keeper");
    assert!(without_is_silent, "a VM without a key made a connection after the end of the keeper");
    skep
}

/// What a VM reaches with a key that was created for it stays the same over pauses to disk. A key can be created meanwhile.
async fn paused_to_disk(skep: &Skep, vm: &Value, whoami_url: &str, key: &Value) {
    let path = format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap());
    let pause = async || skep.post(&format!("{path}/pause"), &json!({"to": "disk"})).await.ok(200);
    let resume = async || {
        let resumed = send(skep.request(Method::POST, &format!("{path}/resume"))).await.ok(200);
        resumed["pid"].as_u64().unwrap()
    };
    let secret = key["key"].as_str().unwrap();
    pause().await;
    let meanwhile = json!({"name": "on disk", "role": "vm", "vm": vm["id"]});
    let meanwhile = skep.post("/api/keys", &meanwhile).await.ok(201);
    let server = skep.server_pid().unwrap();
    kill(server);
    skep.wait_for_server_after(server).await;
    let pid = resume().await;
    for key in [secret, meanwhile["key"].as_str().unwrap()] {
        assert_eq!(status(skep, pid, whoami_url, key).await, "200", "after a pause to disk");
    }
    // A revocation leaves the VM its connection: the server refuses the key. A pause makes no difference to that.
    skep.delete(&format!("/api/keys/{}", key["id"].as_str().unwrap())).await.ok(200);
    pause().await;
    let pid = resume().await;
    assert_eq!(status(skep, pid, whoami_url, secret).await, "403", "after a pause to disk");
}

/// A key whose VM cannot be admitted is not left behind.
async fn not_admitted(skep: &Skep, vm: &Value) {
    let table = in_namespace(skep, "nft list table inet skep");
    let saved = skep.data_dir.path().join("table.nft");
    std::fs::write(&saved, table).unwrap();
    // Addresses of VMs cannot be added to a set of this type.
    in_namespace(
        skep,
        "nft delete table inet skep; nft add table inet skep; \
         nft add set inet skep api_callers '{ type ether_addr; }'",
    );
    let request = json!({"name": "second try", "role": "vm", "vm": vm});
    skep.post("/api/keys", &request).await.refused(503, "swarm_unavailable");
    let listed = skep.get("/api/keys").await.ok(200);
    assert_eq!(listed["keys"][0]["name"], "second try", "{listed}");
    assert!(listed["keys"][0]["revoked_at"].is_string(), "{listed}");
    in_namespace(skep, &format!("nft delete table inet skep; nft -f {}", saved.display()));
    skep.post("/api/keys", &request).await.ok(201);
}
