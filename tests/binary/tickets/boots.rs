//! VMs that are booted for a ticket.

mod ends;

use std::{process::Stdio, time::Duration};

use futures_util::future::select_all;
use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::process::{go_on, stop};
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use crate::harness::{self, Skep, eventually, send, step};

/// Time limit for the output of a command that follows a log.
const FOLLOWER_TIMEOUT: Duration = Duration::from_secs(240);

async fn ticket(skep: &Skep) -> String {
    let made = skep.post("/api/tickets", &json!({"title": "a", "max_attempts": 1})).await.ok(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn record(skep: &Skep, id: &str) -> Value {
    skep.get(&format!("/api/tickets/{id}")).await.ok(200)
}

async fn outcomes(skep: &Skep, id: &str) -> Vec<Value> {
    let history = skep.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    history["attempts"].as_array().unwrap().iter().map(|one| one["outcome"].clone()).collect()
}

/// Ends the VMs of a step, so that the next one finds a server without VMs.
async fn no_vms(skep: &Skep) {
    skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_holds_its_ticket_which_ends_with_the_vm_and_a_boot_that_fails_gives_it_back() {
    // One VM at a time.
    let skep = Skep::start_on(tempfile::tempdir().unwrap(), &["--max-vms", "1"]).await;
    step("boots that fail", boots_that_fail(&skep)).await;
    step("a VM finishes its ticket with its own key", its_own_key(&skep)).await;
    step("a ticket ends with its VM", a_ticket_ends_with_its_vm(&skep)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_held_by_the_command_of_its_boot_and_ends_as_that_does() {
    let skep = Skep::start().await;
    step("a ticket is held while the command runs", held_while_the_command_runs(&skep)).await;
    no_vms(&skep).await;
    step("each VM of a boot runs the command", commands_of_several_vms(&skep)).await;
    no_vms(&skep).await;
    step("the command finds its ticket and the prerequisites", ticket_and_prerequisites(&skep)).await;
    no_vms(&skep).await;
    step("the end of the command finishes the ticket", ends::of_commands(&skep)).await;
    step("a command has some seconds after it has finished its ticket", ends::after_the_ticket(&skep)).await;
}

async fn its_own_key(skep: &Skep) {
    let (id, other) = (ticket(skep).await, ticket(skep).await);
    let booted = skep.post("/api/swarm/boot", &json!({"ticket": id, "env": {"OWN": "x"}})).await.ok(201);
    let vm = &booted["vms"][0];
    let pid = vm["pid"].as_u64().unwrap();
    assert_eq!(vm["ticket"], json!(id));
    let held = record(skep, &id).await;
    assert_eq!(
        (&held["status"], &held["vm"], &held["attempt"]),
        (&json!("in_progress"), &vm["id"], &json!(1))
    );
    let seen = skep.output(pid, "echo $SKEP_TICKET_ID $SKEP_TICKET_ATTEMPT $OWN $SKEP_API_KEY").await;
    let seen: Vec<&str> = seen.split(' ').collect();
    assert_eq!(seen[..3], [id.as_str(), "1", "x"]);
    let key = seen[3];
    let as_vm = |method, path: &str, body: Value| send(skep.bare(method, path).bearer_auth(key).json(&body));
    let me = as_vm(Method::GET, "/api/whoami", json!({})).await.ok(200);
    assert_eq!(me["vm"], vm["id"], "{me}");
    let done = json!({"status": "completed", "attempt": 1, "result": {"ok": true}});
    as_vm(Method::PATCH, &format!("/api/tickets/{other}"), done.clone()).await.refused(404, "unknown_ticket");
    let beat = json!({"attempt": 1, "lease_ms": 5_000});
    as_vm(Method::POST, &format!("/api/tickets/{id}/heartbeat"), beat).await.ok(200);
    its_lease_is_renewed_while_it_is_paused(skep, pid, &id).await;
    as_vm(Method::PATCH, &format!("/api/tickets/{id}"), done).await.ok(200);
    assert_eq!(record(skep, &id).await["result"], json!({"ok": true}));
    // The VM ends with its attempt, and its key with it.
    skep.wait_for_end_of(pid).await;
    assert_eq!(reason(skep, vm).await, "ticket_ended");
    as_vm(Method::GET, "/api/whoami", json!({})).await.refused(403, "token_expired");
}

/// The server renews the lease while the VM exists, also while the VM is paused.
async fn its_lease_is_renewed_while_it_is_paused(skep: &Skep, pid: u64, id: &str) {
    let path = format!("/api/swarm/vm/{pid}");
    skep.post(&format!("{path}/pause"), &json!({})).await.ok(200);
    // Twice, because a renewal must schedule the next one.
    for _ in 0..2 {
        let lease = record(skep, id).await["lease_expires_at"].clone();
        eventually("another lease", async || record(skep, id).await["lease_expires_at"] != lease).await;
    }
    let held = record(skep, id).await;
    assert_eq!((&held["status"], &held["attempt"]), (&json!("in_progress"), &json!(1)), "{held}");
    skep.post(&format!("{path}/resume"), &json!({})).await.ok(200);
}

async fn a_ticket_ends_with_its_vm(skep: &Skep) {
    let boot = async |id: &str| {
        let booted = skep.post("/api/swarm/boot", &json!({"ticket": id})).await.ok(201);
        booted["vms"][0]["pid"].as_u64().unwrap()
    };
    let (deleted, off) = (ticket(skep).await, ticket(skep).await);
    let pid = boot(&deleted).await;
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    assert_eq!(record(skep, &deleted).await["status"], "pending", "an operator's act does not count");
    let pid = boot(&off).await;
    skep.post(&format!("/api/swarm/vm/{pid}/exec"), &json!({"command": "poweroff; sleep 60"})).await;
    eventually("the end", async || record(skep, &off).await["status"] == "failed").await;
    assert_eq!(outcomes(skep, &off).await, [json!("vm_ended")]);
    assert_eq!(outcomes(skep, &deleted).await, [json!("released")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_boot_has_its_effect_once() {
    let skep = Skep::start_on(tempfile::tempdir().unwrap(), &["--max-vms", "2"]).await;
    let boot = |body: Value| {
        let request = skep.request(Method::POST, "/api/swarm/boot").header("idempotency-key", "first");
        send(request.json(&body))
    };
    // No boot ends while the keeper stands still. Of two callers, the later one is refused: the other's boot has begun then.
    stop(skep.pid());
    let callers = (0..2).map(|_| tokio::spawn(boot(json!({"ttl_ms": 600_000}))));
    let (later, _, mut others) = select_all(callers).await;
    // A caller that goes away leaves the boot to its end.
    let impatient = others.remove(0);
    impatient.abort();
    let left = impatient.await;
    go_on(skep.pid());
    later.unwrap().refused(409, "idempotency_in_progress");
    assert!(left.is_err_and(|error| error.is_cancelled()), "the boot was answered");
    eventually("the end of the boot", async || {
        let again = boot(json!({"ttl_ms": 600_000})).await;
        again.status == 201 && again.headers.contains_key("idempotent-replayed")
    })
    .await;
    let (one, two) = (boot(json!({"ttl_ms": 600_000})).await, boot(json!({"ttl_ms": 600_000})).await);
    assert_eq!(two.headers["idempotent-replayed"], "true");
    assert_eq!(one.ok(201), two.ok(201));
    assert_eq!(skep.count().await, 1, "one VM of all of these");
    boot(json!({"count": 2})).await.refused(422, "idempotency_mismatch");
    // What failed had no effect, and its name is free.
    let refused = |template: &str| {
        let request = skep.request(Method::POST, "/api/swarm/boot").header("idempotency-key", "second");
        send(request.json(&json!({"template": template})))
    };
    refused("none").await.refused(404, "unknown_template");
    refused("base").await.ok(201);
}

async fn boots_that_fail(skep: &Skep) {
    let id = ticket(skep).await;
    let boot = async |body: Value| skep.post("/api/swarm/boot", &body).await;
    boot(json!({"ticket": id, "template": "none"})).await.refused(404, "unknown_template");
    assert_eq!(outcomes(skep, &id).await, [json!("released")]);
    let other = skep.boot_one().await;
    boot(json!({"ticket": id})).await;
    let found = record(skep, &id).await;
    assert_eq!(
        (&found["status"], &found["ready"]),
        (&json!("pending"), &json!(true)),
        "no capacity is no attempt"
    );
    skep.delete(&format!("/api/swarm/vm/{other}")).await.ok(200);
    let claimed =
        send(skep.request(Method::PATCH, &format!("/api/tickets/{id}")).json(&json!({"assignee": "a"})));
    claimed.await.ok(200);
    boot(json!({"ticket": id})).await.refused(409, "claim_lost");
    boot(json!({"ticket": "tkt_01jv0000000000000000000000"})).await.refused(404, "unknown_ticket");
    assert_eq!(skep.count().await, 0);
    assert_eq!(record(skep, &id).await["assignee"], "a");
    let keys = skep.get("/api/keys").await.ok(200);
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1, "no key of a VM that is none: {keys}");
}

const WAIT_FOR_FILE: &str = "echo begun; while [ ! -e /root/end ]; do sleep 0.1; done; echo over; exit 3";

async fn held_while_the_command_runs(skep: &Skep) {
    let id = ticket(skep).await;
    let order = json!({"ticket": id, "command": WAIT_FOR_FILE, "keep_vm": true});
    let booted = skep.post("/api/swarm/boot", &order).await.ok(201);
    let (pid, exec_id) = (booted["vms"][0]["pid"].as_u64().unwrap(), booted["vms"][0]["exec_id"].clone());
    let path = format!("/api/swarm/vm/{pid}/exec/{}", exec_id.as_str().unwrap());
    // A follower that disconnects does not end the command.
    let mut watched = skep.request(Method::GET, &path).send().await.unwrap();
    let first = watched.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("begun"), "{first:?}");
    drop(watched);
    assert_eq!(skep.output(pid, "echo $SKEP_TICKET_ID; touch /root/seen").await, id);
    assert_eq!(record(skep, &id).await["status"], "in_progress");
    skep.output(pid, "touch /root/end").await;
    eventually("the end", async || record(skep, &id).await["status"] == "failed").await;
    assert_eq!(outcomes(skep, &id).await, [json!("command_ended")]);
    // The VM is kept, with the output of the command.
    assert_eq!(skep.output(pid, "ls /root/seen").await, "/root/seen");
    let whole = skep.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert!(
        whole.contains("begun") && whole.contains("over") && whole.contains("\"exit_code\":3"),
        "{whole}"
    );
    assert_eq!(skep.get(&format!("/api/swarm/vm/{pid}")).await.ok(200)["exec_id"], exec_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_and_the_command_of_its_boot_work_on_a_ticket_across_a_restart() {
    let skep = Skep::start().await;
    let (held, stays, ends) = (ticket(&skep).await, ticket(&skep).await, ticket(&skep).await);
    let boot = async |order: Value| {
        skep.post("/api/swarm/boot", &order).await.ok(201)["vms"][0]["pid"].as_u64().unwrap()
    };
    let pid = boot(json!({"ticket": held})).await;
    let before = skep.get(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    let staying = boot(json!({"ticket": stays, "command": WAIT_FOR_FILE})).await;
    // It ends while no server runs, or a moment later: its exit and its result are read from the guest.
    boot(json!({"ticket": ends, "command": r#"echo '{"kept": true}' > $SKEP_RESULT_FILE; sleep 2"#})).await;
    let skep = skep.stop_and_leave_vms().start().await;
    let vm = skep.get(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    assert_eq!((&vm["ticket"], &vm["id"]), (&json!(held), &before["id"]));
    let record_of_held = record(&skep, &held).await;
    assert_eq!(
        (&record_of_held["status"], &record_of_held["vm"], &record_of_held["attempt"]),
        (&json!("in_progress"), &vm["id"], &json!(1))
    );
    eventually("the end of one", async || record(&skep, &ends).await["status"] == "completed").await;
    assert_eq!(record(&skep, &ends).await["result"], json!({"kept": true}));
    assert_eq!(record(&skep, &stays).await["status"], "in_progress");
    skep.output(staying, "touch /root/end").await;
    eventually("the end of both", async || record(&skep, &stays).await["status"] == "failed").await;
    assert_eq!(outcomes(&skep, &stays).await, [json!("command_ended")]);
    assert_eq!(outcomes(&skep, &ends).await, [json!("completed")]);
}

/// The attempts of a ticket.
async fn attempts(skep: &Skep, id: &str) -> Vec<Value> {
    let history = skep.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    history["attempts"].as_array().unwrap().clone()
}

async fn commands_of_several_vms(skep: &Skep) {
    let order = json!({"count": 2, "command": "echo $WORD > /root/word", "env": {"WORD": "w"}});
    let booted = skep.post("/api/swarm/boot", &order).await.ok(201);
    for vm in booted["vms"].as_array().unwrap() {
        let pid = vm["pid"].as_u64().unwrap();
        eventually("the word", async || skep.output(pid, "cat /root/word 2>/dev/null; true").await == "w")
            .await;
    }
    let refused = |command: String| json!({"count": 1, "command": command});
    skep.post("/api/swarm/boot", &refused("a\0b".to_owned())).await.refused(400, "invalid_value");
    skep.post("/api/swarm/boot", &refused("x".repeat(1 << 17))).await.refused(400, "invalid_value");
    assert_eq!(skep.count().await, 2);
    let agent = skep.post("/api/keys", &json!({"name": "no exec", "scopes": ["swarm:write"]})).await.ok(201);
    let key = agent["key"].as_str().unwrap();
    let asked = skep.bare(Method::POST, "/api/swarm/boot").bearer_auth(key).json(&refused("true".to_owned()));
    send(asked).await.refused(403, "scope_missing");
}

/// Why a VM ended, as the list of VMs has it.
async fn reason(skep: &Skep, vm: &Value) -> Value {
    let ended = skep.get("/api/vms?state=ended").await.ok(200);
    let found = ended["vms"].as_array().unwrap().iter().find(|one| one["id"] == vm["id"]);
    found.map_or(Value::Null, |one| one["reason"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_ends_with_its_attempt_however_that_ends_and_one_that_is_kept_does_not() {
    let skep = Skep::start().await;
    let boot = async |keep_vm: bool| {
        let id = ticket(&skep).await;
        let order = json!({"ticket": id, "keep_vm": keep_vm});
        let booted = skep.post("/api/swarm/boot", &order).await.ok(201);
        (id, booted["vms"][0].clone())
    };
    let change = async |id: &str, body: Value| {
        send(skep.request(Method::PATCH, &format!("/api/tickets/{id}")).json(&body)).await.ok(200);
    };
    let ended = async |vm: &Value| {
        eventually("the end of the VM", async || reason(&skep, vm).await == "ticket_ended").await;
    };
    let (kept, kept_vm) = boot(true).await;
    change(&kept, json!({"status": "completed"})).await;
    let (failed, vm) = boot(false).await;
    change(&failed, json!({"status": "failed"})).await;
    ended(&vm).await;
    let (released, vm) = boot(false).await;
    change(&released, json!({"status": "pending"})).await;
    ended(&vm).await;
    let (deleted, vm) = boot(false).await;
    skep.delete(&format!("/api/tickets/{deleted}?force=true")).await.ok(200);
    ended(&vm).await;
    let kept_pid = kept_vm["pid"].as_u64().unwrap();
    assert_eq!(skep.output(kept_pid, "echo here").await, "here");
    // A server that died between the end of the attempt and that of the VM leaves such a VM: the next start ends it.
    let wreck = skep.crash();
    let script = "import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as store:
    store.execute('update vms set keep_vm = 0 where id = ?', sys.argv[2:])";
    let store = wreck.path().join("server/skep.db");
    let id = kept_vm["id"].as_str().unwrap();
    let altered = std::process::Command::new("python3").args(["-c", script]).arg(store).arg(id).status();
    assert!(altered.unwrap().success());
    let skep = wreck.start().await;
    eventually("the end of the VM", async || reason(&skep, &kept_vm).await == "ticket_ended").await;
    // The end is on record before the VM leaves the server's list.
    eventually("no VM in the list", async || skep.count().await == 0).await;
}

async fn ticket_and_prerequisites(skep: &Skep) {
    let mut needs = Vec::new();
    // The sixth does not fit into the file.
    for number in 0..6 {
        let id = ticket(skep).await;
        let result = json!({"number": number, "text": "x".repeat(800_000)});
        let done = json!({"status": "completed", "result": result});
        send(skep.request(Method::PATCH, &format!("/api/tickets/{id}")).json(&done)).await.ok(200);
        needs.push(id);
    }
    let made = json!({"title": "dépend", "description": "all of it", "dependencies": needs});
    let id = skep.post("/api/tickets", &made).await.ok(201)["id"].as_str().unwrap().to_owned();
    let copy = "cat $SKEP_TICKET_FILE > /root/seen; ls -l /run/skep/ticket.json > /root/mode; sleep 600";
    let booted = skep.post("/api/swarm/boot", &json!({"ticket": id, "command": copy})).await.ok(201);
    let vm = &booted["vms"][0];
    let pid = vm["pid"].as_u64().unwrap();
    eventually("the command", async || {
        !skep.output(pid, "cat /root/mode 2>/dev/null; true").await.is_empty()
    })
    .await;
    let mode = skep.output(pid, "cat /root/mode").await;
    assert!(mode.starts_with("-rw-r--r-- 1 root root "), "{mode}");
    let read = skep.get(&format!("/api/files/read?vm={pid}&path=/root/seen")).await.ok(200);
    let seen: Value = serde_json::from_str(read["content"].as_str().unwrap()).unwrap();
    let record = record(skep, &id).await;
    for field in ["id", "title", "description", "status", "attempt", "vm", "dependencies", "assignee"] {
        assert_eq!(seen["ticket"][field], record[field], "{field}");
    }
    assert_eq!(seen["ticket"]["vm"], vm["id"]);
    let found = seen["prerequisites"].as_array().unwrap();
    assert_eq!(found.len(), 6);
    for (number, one) in found.iter().enumerate() {
        assert_eq!(one["id"], needs[number]);
        if number < 5 {
            assert_eq!((&one["result"]["number"], &one["truncated"]), (&json!(number), &Value::Null));
        } else {
            assert_eq!(*one, json!({"id": needs[5], "title": "a", "status": "completed", "truncated": true}));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_boot_command_can_be_read_during_and_after_its_vm() {
    let server = Skep::start().await;
    let id = ticket(&server).await;
    // Prints bytes that are not UTF-8 to both outputs, and more than one page. It waits for a file before it changes the
    // output: the order of what is in two pipes at once is not known.
    let command = "wait_for() { while [ ! -e /root/$1 ]; do sleep 0.1; done; }
        printf 'a\\377\\000b\\n'; wait_for err; echo err >&2; wait_for lines; yes line | head -c 1000000
        wait_for end; echo last; exit 3";
    let booted = server.post("/api/swarm/boot", &json!({"ticket": id, "command": command})).await.ok(201);
    let vm = &booted["vms"][0];
    let pid = vm["pid"].as_u64().unwrap();
    let log = format!("/api/tickets/{id}/log");
    let size = async || server.get(&log).await.ok(200)["size_bytes"].as_u64().unwrap();
    for (bytes, next) in [(5, "err"), (9, "lines")] {
        eventually("the output before", async || size().await >= bytes).await;
        server.output(pid, &format!("touch /root/{next}")).await;
    }
    eventually("the output", async || size().await >= 1_000_009).await;
    let first = server.get(&log).await.ok(200);
    assert_eq!((&first["attempt"], &first["vm"], &first["running"]), (&json!(1), &vm["id"], &json!(true)));
    assert_eq!((&first["truncated"], &first["next_offset"]), (&json!(true), &json!(512 << 10)));
    assert!(first["output"].as_str().unwrap().starts_with("a\u{FFFD}\0b\nerr\nline\n"), "{first}");
    let mut follower = Command::from(harness::command(&server, &["ticket", "logs", "-f", &id]));
    let mut follower = follower.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut followed = follower.stdout.take().unwrap();
    // It has begun to follow once it prints. Its first request is not repeated.
    let mut printed = vec![0];
    timeout(FOLLOWER_TIMEOUT, followed.read_exact(&mut printed)).await.unwrap().unwrap();
    // The next server continues where this one stopped, and the follower reconnects.
    let killed = server.server_pid().unwrap();
    crate::harness::kill(killed);
    server.wait_for_server_after(killed).await;
    server.output(pid, "touch /root/end").await;
    let expected = [b"a\xff\0b\nerr\n".as_slice(), &b"line\n".repeat(200_000), b"last\n"].concat();
    timeout(FOLLOWER_TIMEOUT, followed.read_to_end(&mut printed)).await.unwrap().unwrap();
    let ended = timeout(FOLLOWER_TIMEOUT, follower.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
    assert!(printed == expected, "{} bytes of {}", printed.len(), expected.len());
    eventually("the end of the VM", async || reason(&server, vm).await == "ticket_ended").await;
    let whole = harness::command(&server, &["ticket", "logs", &id, "--attempt", "1"]).output().unwrap();
    assert!(whole.status.success() && whole.stdout == expected, "{:?}", whole.stderr);
    let end = server.get(&format!("{log}?offset=1000009&attempt=1")).await.ok(200);
    assert_eq!((&end["output"], &end["running"]), (&json!("last\n"), &json!(false)));
    server.get(&format!("{log}?attempt=2")).await.refused(404, "unknown_log");
    assert_eq!(attempts(&server, &id).await[0]["result"]["exit_code"], 3);
}
