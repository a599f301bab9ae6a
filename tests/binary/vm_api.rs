//! The API for VMs that have a key: reachable at SKEP_URL, with that key, by that VM only.

use serde_json::{Value, json};

use crate::harness::{Skep, eventually, kill, temp_dir};

/// The README's example of what a command does in a ticket's VM.
fn readme_example() -> &'static str {
    let blocks = include_str!("../../README.md").split("```").skip(1).step_by(2);
    let mut found = blocks.filter(|block| block.contains("\"$SKEP_URL/api/tickets/$SKEP_TICKET_ID\""));
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

async fn worker(skep: &Skep, source: &str) -> Worker {
    let made = skep.post("/api/tickets", &json!({"title": "from inside"})).await.ok(201);
    let ticket = made["id"].as_str().unwrap().to_owned();
    // The VM is used when its ticket is completed, too.
    let boot = json!({"ticket": ticket, "keep_vm": true});
    let vm = skep.post("/api/swarm/boot", &boot).await.ok(201)["vms"][0].clone();
    assert_eq!(vm["boot"]["source"], source);
    let pid = vm["pid"].as_u64().unwrap();
    let key = skep.output(pid, "echo $SKEP_API_KEY").await;
    Worker { pid, ip: vm["ip"].as_str().unwrap().to_owned(), ticket, key }
}

/// The status that a VM gets for a request, or `000` where it makes no connection.
async fn status(skep: &Skep, pid: u64, url: &str, key: &str) -> String {
    let command =
        format!("curl -s -m 3 -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer {key}' {url}; true");
    skep.output(pid, &command).await
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

/// Opens connections without end, says on how many of them it was answered, and holds these.
const FLOOD: &str = r#"cat > /run/flood.py <<'END'
import os, socket, time, urllib.parse
url = urllib.parse.urlparse(os.environ["SKEP_URL"])
held = []
for _ in range(300):
    try:
        one = socket.create_connection((url.hostname, url.port), 5)
        one.sendall(b"GET /api/health HTTP/1.1\r\nhost: x\r\n\r\n")
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
    let skep = Skep::start_on(data_dir, &["--pool-size", "1"]).await;
    eventually("a full pool", async || {
        skep.get("/api/swarm/status").await.ok(200)["pool"]["base"]["ready"] == json!(1)
    })
    .await;
    let first = worker(&skep, "pool").await;
    let second = worker(&skep, "cold").await;
    let without = skep.boot(1).await.remove(0);
    let without_pid = without["pid"].as_u64().unwrap();

    finishes_its_ticket(&skep, &first).await;
    let url = skep.output(second.pid, "echo $SKEP_URL").await;
    reached_by_own_key_only(&skep, &first, &second).await;
    assert_eq!(skep.output(without_pid, "echo $SKEP_URL").await, "");
    let health = format!("{url}/api/health");
    assert_eq!(status(&skep, without_pid, &health, "").await, "000", "a VM without a key made a connection");
    assert_eq!(status(&skep, first.pid, &health, "").await, "200");
    takes_no_connections_of_others(&skep, &first, &second).await;

    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    assert_eq!(whoami(&skep, second.pid, &second.key).await, "200", "after a restart");
    let skep = killed(skep, &second, without_pid, &health).await;

    // The control of the one without: with a key the same request arrives.
    let key = json!({"name": "by hand", "role": "vm", "vm": without["id"]});
    let key = skep.post("/api/keys", &key).await.ok(201)["key"].as_str().unwrap().to_owned();
    assert_eq!(status(&skep, without_pid, &format!("{url}/api/whoami"), &key).await, "200");

    assert!(callers(&skep).contains(&second.ip));
    skep.delete(&format!("/api/swarm/vm/{}", second.pid)).await.ok(200);
    assert!(!callers(&skep).contains(&second.ip), "{}", callers(&skep));
}

/// As the README says.
async fn finishes_its_ticket(skep: &Skep, worker: &Worker) {
    let path = format!("/api/tickets/{}", worker.ticket);
    assert_eq!(skep.get(&path).await.ok(200)["status"], "in_progress");
    let output = skep.output(worker.pid, readme_example()).await;
    assert!(output.contains("\"title\":\"from inside\""), "{output}");
    let record = skep.get(&path).await.ok(200);
    assert_eq!(record["status"], "completed", "{output}");
    let name = skep.output(worker.pid, "hostname").await;
    assert_eq!(record["result"], json!({"by": name}));
}

async fn reached_by_own_key_only(skep: &Skep, one: &Worker, other: &Worker) {
    let control = async |key: &str| {
        let answer = skep.bare(reqwest::Method::GET, "/api/whoami").bearer_auth(key).send().await.unwrap();
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
    eventually("all that the flood gets", async || {
        held = skep.exec(greedy.pid, "cat /run/held").await;
        held["exit_code"] == 0
    })
    .await;
    assert_eq!(held["stdout"], "32", "{held}");
    assert_eq!(whoami(skep, greedy.pid, &greedy.key).await, "000", "it has no further connection");
    assert_eq!(whoami(skep, other.pid, &other.key).await, "200");
    assert_eq!(reqwest::get(format!("{}/api/health", skep.url)).await.unwrap().status(), 200);
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
    assert_eq!(whoami(&skep, worker.pid, &worker.key).await, "200", "after the end of the keeper");
    assert_eq!(status(&skep, without, health, "").await, "000");
    skep
}
