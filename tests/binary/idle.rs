//! Real VMs that are paused or ended for being idle, and the calls that resume them.

mod thorough;

use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use skep_harness::temp_dir;

use crate::{
    copies::pid_of,
    harness::{Skep, command, eventually, output_of, send},
    takeover::{Streamed, Victim, assert_in_order},
};

async fn boot(skep: &Skep, request: &Value) -> Value {
    skep.post("/api/swarm/boot", request).await.ok(201)["vms"][0].clone()
}

fn path(vm: &Value) -> String {
    format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap())
}

async fn run(skep: &Skep, vm: &str, command: &str) -> String {
    let ran = skep.post(&format!("{vm}/exec"), &json!({"command": command})).await.ok(200);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    ran["stdout"].as_str().unwrap().trim_end().to_owned()
}

/// Waits until an idle timeout has paused a VM to this place. Reads of the record do not resume it.
async fn paused(skep: &Skep, vm: &Value, to: &str) {
    eventually("a pause for being idle", async || {
        let record = skep.get(&path(vm)).await.ok(200);
        record["paused_to"] == to && record["paused_by"] == "idle"
    })
    .await;
}

/// Fails unless the first events say that an idle timeout paused the VMs, and that calls resumed them.
fn assert_events(skep: &Skep) {
    let arguments = ["events", "--from-start", "--types", "vm.paused,vm.resumed", "-n", "6", "--json"];
    let printed = output_of(&mut command(skep, &arguments));
    assert!(printed.status.success(), "{printed:?}");
    let events: Vec<Value> =
        serde_json::Deserializer::from_slice(&printed.stdout).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(events.len(), 6);
    for event in events {
        match event["type"].as_str().unwrap() {
            "vm.paused" => assert_eq!((&event["paused_by"], &event["by"]), (&json!("idle"), &Value::Null)),
            _ => assert_eq!((&event["by"], &event["paused_by"]), (&json!("activity"), &Value::Null)),
        }
    }
}

/// Leaves a file and a process, and later fails unless both are there.
const BEGIN: &str = "echo kept > /root/file; (sleep 100000 & echo $! > /run/pid)";
const LOOK: &str = "cat /root/file; kill -0 $(cat /run/pid)";

#[tokio::test(flavor = "multi_thread")]
async fn a_call_resumes_a_vm_that_was_paused_for_being_idle() {
    let mut skep = Skep::start().await;
    let idle = |on_idle: &str| json!({"idle_timeout_ms": 1000, "on_idle": on_idle});
    let in_memory = boot(&skep, &idle("pause")).await;
    let on_disk = boot(&skep, &idle("pause_to_disk")).await;
    // Both are idle at the same time.
    for vm in [&in_memory, &on_disk] {
        run(&skep, &path(vm), BEGIN).await;
    }
    paused(&skep, &in_memory, "memory").await;
    paused(&skep, &on_disk, "disk").await;
    for vm in [&in_memory, &on_disk] {
        assert_eq!(run(&skep, &path(vm), LOOK).await, "kept", "the process goes on where it was");
    }
    // A caller that knows only a former process id reaches a VM on disk, and after its resume.
    let former = skep.get(&path(&on_disk)).await.ok(200)["pid"].as_u64();
    paused(&skep, &on_disk, "disk").await;
    if let Some(former) = former {
        // The first call resumes the VM, which has another process id then.
        for _ in 0..2 {
            assert_eq!(run(&skep, &format!("/api/swarm/vm/{former}"), "cat /root/file").await, "kept");
        }
        assert_ne!(skep.get(&path(&on_disk)).await.ok(200)["pid"], former);
    }
    paused(&skep, &in_memory, "memory").await;
    let id = in_memory["id"].as_str().unwrap();
    let read = skep.get(&format!("/api/files/read?vm={id}&path=/root/file")).await.ok(200);
    assert_eq!(read["content"], "kept\n");
    paused(&skep, &in_memory, "memory").await;
    let copies = skep.post(&format!("{}/fork", path(&in_memory)), &json!({})).await.ok(201);
    let copy = &copies["vms"][0];
    assert_eq!(copy["idle_timeout_ms"], Value::Null, "{copies}");
    assert_eq!(run(&skep, &path(copy), LOOK).await, "kept");
    skep.delete(&path(copy)).await.ok(200);
    assert_events(&skep);

    paused(&skep, &on_disk, "disk").await;
    skep = Victim::Both.kill(skep).await;
    assert_eq!(run(&skep, &path(&on_disk), LOOK).await, "kept");
    stays_awake(&skep, &on_disk).await;
    assert_in_order(&skep).await;
}

/// A VM that goes to disk during a look at everything does not have what VMs with a VMM have.
async fn stays_awake(skep: &Skep, vm: &Value) {
    let never_idle = json!({"idle_timeout_ms": null});
    send(skep.request(Method::PATCH, &path(vm)).json(&never_idle)).await.ok(200);
    assert_eq!(run(skep, &path(vm), "cat /root/file").await, "kept");
}

/// Runs until it is told that it is enough.
const WAIT: &str = "while [ ! -e /run/enough ]; do sleep 0.1; done";

/// Begins to watch the home directory of a VM.
async fn watch(skep: &Skep, vm: &Value) -> Response {
    let watch = format!("/api/files/watch?vm={}&path=/root", vm["id"].as_str().unwrap());
    let watch = skep.request(Method::GET, &watch).send().await.unwrap();
    assert_eq!(watch.status(), 200);
    watch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_idle_only_without_calls_streams_and_a_command() {
    let skep = Skep::start().await;
    let order = json!({"idle_timeout_ms": 1000, "count": 3});
    let booted = skep.post("/api/swarm/boot", &order).await.ok(201)["vms"].as_array().unwrap().clone();
    let [streaming, watched, idle] = booted.try_into().unwrap();
    let id = idle["id"].as_str().unwrap();
    skep.post("/api/git/init", &json!({"path": "/root/work", "vm": id})).await.ok(201);
    // A process that a command left behind does not count as activity.
    run(&skep, &path(&idle), "(while :; do sleep 0.1; done) > /dev/null 2>&1 &").await;
    for vm in [&streaming, &watched, &idle] {
        paused(&skep, vm, "memory").await;
    }
    // Calls of other kinds than a command resume a VM, and streams keep it running.
    let mut stream = Streamed::begin(&skep, pid_of(&streaming), &format!("echo begun; {WAIT}")).await;
    stream.wait_for_output("begun\n".len()).await;
    let mut changes = watch(&skep, &watched).await;
    let ending = boot(&skep, &json!({"idle_timeout_ms": 1000, "on_idle": "end"})).await;
    let working = boot(&skep, &json!({"idle_timeout_ms": 1000, "command": WAIT})).await;
    let called = boot(&skep, &json!({"idle_timeout_ms": 1000})).await;
    let call = tokio::spawn({
        // Longer than the default, which may be over before the last look at the VM.
        let wait = json!({"command": WAIT, "timeout": 240_000});
        send(skep.request(Method::POST, &format!("{}/exec", path(&called))).json(&wait))
    });

    // Meanwhile another VM is idle for long enough, twice.
    for _ in 0..2 {
        skep.get(&format!("/api/git/status?path=/root/work&vm={id}")).await.ok(200);
        paused(&skep, &idle, "memory").await;
        for vm in [&streaming, &watched, &working, &called] {
            assert_eq!(skep.get(&path(vm)).await.ok(200)["state"], "running");
        }
    }
    for vm in [&streaming, &working, &called] {
        run(&skep, &path(vm), "touch /run/enough").await;
    }
    let (kind, exit) = stream.rest().await.unwrap();
    assert_eq!((kind.as_str(), &exit["exit_code"]), ("exit", &json!(0)), "{exit}");
    run(&skep, &path(&watched), "touch /root/new").await;
    let mut seen = String::new();
    while !seen.contains("/root/new") {
        seen.push_str(&String::from_utf8_lossy(&changes.chunk().await.unwrap().unwrap()));
    }
    drop((stream, changes));
    call.await.unwrap().ok(200);
    for vm in [&streaming, &watched, &working, &called] {
        paused(&skep, vm, "memory").await;
    }
    let ended = skep.get("/api/vms?state=ended").await.ok(200);
    assert_eq!((&ended["vms"][0]["id"], &ended["vms"][0]["reason"]), (&ending["id"], &json!("idle")));

    skep.post(&format!("{}/snapshot", path(&idle)), &json!({"name": "stored"})).await.ok(201);
    paused(&skep, &idle, "memory").await;
    // A pause by a request lasts.
    run(&skep, &path(&idle), "true").await;
    skep.post(&format!("{}/pause", path(&idle)), &json!({})).await.ok(200);
    let refused = skep.post(&format!("{}/exec", path(&idle)), &json!({"command": "true"})).await;
    refused.refused(409, "vm_paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_changes_of_a_record_leave_an_idle_vm_paused() {
    let skep = Skep::start().await;
    let in_memory = boot(&skep, &json!({"idle_timeout_ms": 1000})).await;
    let on_disk = boot(&skep, &json!({"idle_timeout_ms": 1000, "on_idle": "pause_to_disk"})).await;
    paused(&skep, &in_memory, "memory").await;
    paused(&skep, &on_disk, "disk").await;
    let events = skep.request(Method::GET, "/api/events?types=vm.resumed").send().await.unwrap();
    assert_eq!(events.status(), 200);
    let mut events = events.bytes_stream().eventsource();

    for (vm, has_process) in [(&in_memory, true), (&on_disk, false)] {
        for read in ["", "/console"] {
            skep.get(&format!("{}{read}", path(vm))).await.ok(200);
        }
        let metrics = skep.get(&format!("{}/metrics", path(vm))).await;
        if has_process {
            metrics.ok(200);
        } else {
            metrics.refused(409, "vm_paused");
        }
        let change = json!({"metadata": {"team": "blue"}, "ttl_ms": 3_600_000});
        let changed = send(skep.request(Method::PATCH, &path(vm)).json(&change)).await.ok(200);
        assert_eq!(changed["state"], "paused", "{changed}");
    }
    for read in ["/api/swarm/status", "/api/vms", "/api/swarm/metrics", "/metrics"] {
        skep.get(read).await.ok(200);
    }

    // If any of these had resumed a VM, that would be the first event.
    for vm in [&in_memory, &on_disk] {
        assert_eq!(skep.get(&path(vm)).await.ok(200)["paused_by"], "idle");
    }
    skep.post(&format!("{}/resume", path(&in_memory)), &json!({})).await.ok(200);
    let first = events.next().await.unwrap().unwrap();
    let data: Value = serde_json::from_str(&first.data).unwrap();
    assert_eq!(
        (first.event.as_str(), &data["vm"], &data["by"]),
        ("vm.resumed", &in_memory["id"], &json!("request")),
        "{data}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_times_are_checked_and_changed() {
    let skep = Skep::start().await;
    for (request, name) in [
        (json!({"idle_timeout_ms": 999}), "idle_timeout_ms"),
        (json!({"idle_timeout_ms": "1m"}), "idle_timeout_ms"),
        (json!({"on_idle": "pause"}), "idle_timeout_ms"),
        (json!({"idle_timeout_ms": 1000, "on_idle": "sleep"}), "on_idle"),
    ] {
        let refused = skep.post("/api/swarm/boot", &request).await;
        assert!(refused.refused(400, "invalid_value").contains(name), "{refused:?}");
    }
    let options =
        ["boot", "--name", "sleeper", "--idle-timeout", "8h", "--on-idle", "pause-to-disk", "--json"];
    let booted = output_of(&mut command(&skep, &options));
    assert!(booted.status.success(), "{booted:?}");
    let record = async || skep.get("/api/swarm/vm/sleeper").await.ok(200);
    let rule = |record: &Value| (record["idle_timeout_ms"].clone(), record["on_idle"].clone());
    assert_eq!(rule(&record().await), (json!(28_800_000), json!("pause_to_disk")));
    let change = async |change: Value| {
        send(skep.request(Method::PATCH, "/api/swarm/vm/sleeper").json(&change)).await.ok(200)
    };
    assert_eq!(rule(&change(json!({"on_idle": "end"})).await), (json!(28_800_000), json!("end")));
    assert_eq!(rule(&change(json!({"idle_timeout_ms": null})).await), (Value::Null, json!("end")));
    assert_eq!(
        rule(&change(json!({"idle_timeout_ms": 1000, "on_idle": "pause"})).await),
        (json!(1000), json!("pause"))
    );
    eventually("a pause", async || record().await["paused_by"] == "idle").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_without_capacity_sends_the_longest_idle_vm_to_disk() {
    let skep = Skep::start_on(temp_dir(), &["--max-vms", "2"]).await;
    let idle = json!({"idle_timeout_ms": 1000});
    let first = boot(&skep, &idle).await;
    run(&skep, &path(&first), "echo kept > /root/file").await;
    paused(&skep, &first, "memory").await;
    let second = boot(&skep, &idle).await;
    paused(&skep, &second, "memory").await;

    let place = async |vm: &Value| {
        let record = skep.get(&path(vm)).await.ok(200);
        (record["paused_to"].clone(), record["paused_by"].clone())
    };
    // A boot that does not fit into the empty machine moves no VM, and neither does one that exceeds the account's quota.
    skep.post("/api/swarm/boot", &json!({"count": 3})).await.refused(503, "no_capacity");
    let acme = skep.tenant("acme").await;
    let account = format!("/api/accounts/{}", acme.id);
    send(skep.request(Method::PATCH, &account).json(&json!({"max_vms": 0}))).await.ok(200);
    acme.post("/api/swarm/boot", &json!({})).await.refused(409, "quota_exceeded");
    for vm in [&first, &second] {
        assert_eq!(place(vm).await, (json!("memory"), json!("idle")));
    }

    let third = boot(&skep, &json!({})).await;
    assert_eq!(place(&first).await, (json!("disk"), json!("memory")));
    assert_eq!(place(&second).await, (json!("memory"), json!("idle")));
    // It would fit into the empty machine, but not beside the VM that is not idle.
    skep.post("/api/swarm/boot", &json!({"count": 2})).await.refused(503, "no_capacity");
    assert_eq!(place(&second).await, (json!("memory"), json!("idle")));

    // A VM that a request paused keeps its place, and a running one does too.
    skep.post(&format!("{}/pause", path(&third)), &json!({})).await.ok(200);
    let fourth = boot(&skep, &json!({})).await;
    assert_eq!(place(&second).await, (json!("disk"), json!("memory")));
    assert_eq!(place(&third).await, (json!("memory"), json!("request")));
    let call = format!("{}/exec", path(&first));
    let refused = skep.post(&call, &json!({"command": "true"})).await;
    assert!(refused.refused(503, "no_capacity").contains("holds 2 VMs"), "{refused:?}");

    skep.delete(&path(&fourth)).await.ok(200);
    assert_eq!(run(&skep, &path(&first), "cat /root/file").await, "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_idle_vms_go_to_disk_before_those_of_other_accounts() {
    let skep = Skep::start_on(temp_dir(), &["--max-vms", "2"]).await;
    let acme = skep.tenant("acme").await;
    let idle = json!({"idle_timeout_ms": 1000});
    let own = acme.post("/api/swarm/boot", &idle).await.ok(201)["vms"][0].clone();
    let place = async |vm: &Value| acme.get(&path(vm)).await.ok(200)["paused_to"].clone();
    eventually("a pause for being idle", async || place(&own).await == "memory").await;
    let others = boot(&skep, &idle).await;
    paused(&skep, &others, "memory").await;

    // This restarts the idle time, so that the other account's VM is idle for longer.
    let change = json!({"idle_timeout_ms": 2000});
    send(acme.request(Method::PATCH, &path(&own)).json(&change)).await.ok(200);
    let running = acme.post("/api/swarm/boot", &json!({})).await.ok(201)["vms"][0].clone();
    assert_eq!(place(&own).await, "disk");
    paused(&skep, &others, "memory").await;
    // The control: without an idle VM of its own, the account gets the place of the other's.
    acme.post("/api/swarm/boot", &json!({})).await.ok(201);
    assert_eq!(skep.get(&path(&others)).await.ok(200)["paused_to"], "disk");
    assert_eq!(place(&running).await, Value::Null);
}
