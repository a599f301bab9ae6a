//! Boot, status, cleanup: the main job.

mod thorough;

use std::{collections::BTreeSet, io::ErrorKind, net::SocketAddr, process::Command};

use futures_util::future::join_all;
use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    harness::{Skep, connect_in_namespace, eventually, send, step},
    takeover::assert_in_order,
};

fn address(vm: &Value, port: u16) -> SocketAddr {
    SocketAddr::new(vm["ip"].as_str().unwrap().parse().unwrap(), port)
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_have_names_and_addresses_of_their_own_and_leave_nothing() {
    let skep = Skep::start().await;
    let vms = skep.boot(4).await;
    assert_eq!(skep.count().await, 4);

    let names = join_all(vms.iter().map(|vm| skep.output(vm["pid"].as_u64().unwrap(), "hostname"))).await;
    assert_eq!(BTreeSet::from_iter(&names).len(), 4, "{names:?}");

    let marked = "test ! -e /root/mark && echo mark > /root/mark && sync";
    join_all(vms.iter().map(|vm| skep.output(vm["pid"].as_u64().unwrap(), marked))).await;

    for vm in &vms {
        // A closed port is refused by the guest's own kernel, so no other machine has that address.
        let refused = connect_in_namespace(&skep.namespace(), address(vm, 9)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{vm}: {refused}");
    }

    let answer = skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
    assert_eq!(answer, json!({"terminated": 4}));
    assert_eq!(skep.count().await, 0);
    for vm in &vms {
        let pid = vm["pid"].as_u64().unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
    }
    assert_in_order(&skep).await;
    // A VM that is booted next has none of their files.
    skep.output(skep.boot_one().await, "test ! -e /root/mark").await;
}

/// The time to live of VMs whose boot names none, in seconds.
const DEFAULT_TTL_S: i64 = 5400;

#[tokio::test]
async fn a_boot_is_one_vm_with_its_time_metadata_environment_and_console() {
    let data_dir = tempfile::tempdir().unwrap();
    let skep = Skep::start_on(data_dir, &["--default-ttl", "1h 30m"]).await;
    // The log has no other VM that expired.
    step("a VM ends when its time is over", a_time_that_is_over(&skep)).await;
    step("a boot without a body", a_boot_without_a_body(&skep)).await;
    step("metadata and environment", metadata_and_environment(&skep)).await;
    step("changes of time and metadata", changes(&skep)).await;
    step("VMs that are not there", unknown_vms(&skep)).await;
    step("the console", console(&skep, skep.boot_one().await)).await;
}

/// Seconds from the boot of a VM to its end.
pub(crate) fn lifetime_s(vm: &Value) -> i64 {
    let time = |field: &str| vm[field].as_str().unwrap().parse::<Timestamp>().unwrap();
    time("expires_at").duration_since(time("started_at")).as_secs()
}

async fn a_time_that_is_over(skep: &Skep) {
    let answer = skep.post("/api/swarm/boot", &json!({"ttl_ms": 4000})).await.ok(201);
    assert!(answer["vms"][0]["expires_at"].is_string(), "{answer}");
    skep.wait_for_end_of(answer["vms"][0]["pid"].as_u64().unwrap()).await;
    assert!(skep.log().contains("expired"), "{}", skep.log());
}

async fn a_boot_without_a_body(skep: &Skep) {
    let answer = send(skep.request(Method::POST, "/api/swarm/boot")).await.ok(201);
    let vm = &answer["vms"][0];
    let receipt = &vm["boot"];
    assert_eq!(lifetime_s(vm), DEFAULT_TTL_S);
    assert_eq!(receipt["source"], "cold");
    assert_eq!(receipt["reseeded"], true);
    for figure in ["restore_ms", "identity_ms", "ready_ms"] {
        assert!(receipt[figure].as_f64().unwrap() > 0.0, "{figure}: {receipt}");
    }
    assert!(answer["elapsed_ms"].as_f64() >= receipt["ready_ms"].as_f64(), "{answer}");
    let by_id = skep.get(&format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap())).await.ok(200);
    assert_eq!(by_id["pid"], vm["pid"]);
    let status = skep.get("/api/swarm/status").await.ok(200);
    let engine = &status["engine"];
    assert!(
        engine["reason"].is_string() && engine["name"].as_str().unwrap().starts_with("qemu "),
        "{engine}"
    );
    let isolations = [json!(["kvm", "hardware"]), json!(["tcg", "emulated"])];
    assert!(isolations.contains(&json!([engine["accel"], engine["isolation"]])), "{engine}");
    assert!(status["capacity"]["memory_used_mb"].as_u64().unwrap() >= 128, "{status}");
}

async fn metadata_and_environment(skep: &Skep) {
    let request = json!({"metadata": {"team": "blue"}, "env": {"SECRET": "canary-4711"}, "ttl_ms": 600_000});
    let answer = skep.post("/api/swarm/boot", &request).await.ok(201);
    assert_eq!(answer["vms"][0]["metadata"], json!({"team": "blue"}));
    assert_eq!(lifetime_s(&answer["vms"][0]), 600, "its own time wins over the default");
    let pid = answer["vms"][0]["pid"].as_u64().unwrap();
    assert_eq!(skep.output(pid, "echo $SECRET").await, "canary-4711");
    let won = skep.exec_with(pid, &json!({"command": "echo $SECRET", "env": {"SECRET": "own"}})).await;
    assert_eq!(won["stdout"], "own\n");
    let status = skep.get("/api/swarm/status").await.ok(200);
    assert!(!status.to_string().contains("canary-4711"));
    assert!(!skep.log().contains("canary-4711"));
    let id = answer["vms"][0]["id"].as_str().unwrap();
    let events = skep.get("/api/events?types=vm.*&since=2020-01-01T00:00:00Z&follow=false").await.ok(200);
    let events = events.as_str().unwrap();
    assert!(events.contains(id) && !events.contains("canary-4711"), "{events}");
    let files_with = |text: &str| {
        let folders = ["server", "keeper"].map(|name| skep.data_dir.path().join(name));
        let mut grep = Command::new("grep");
        grep.args(["-rlsF", "-D", "skip", "-e", text]).args(folders).output().unwrap()
    };
    assert_eq!(files_with("canary-4711").stdout, b"");
    // The control: the VM is in the store.
    assert!(String::from_utf8_lossy(&files_with(id).stdout).contains("/skep.db"));
}

async fn changes(skep: &Skep) {
    let request = json!({"ttl_ms": 3_600_000, "metadata": {"a": 1, "b": 2}});
    let vm = skep.post("/api/swarm/boot", &request).await.ok(201)["vms"][0].clone();
    let path = format!("/api/swarm/vm/{}", vm["pid"]);
    let change = async |body: &Value| send(skep.request(Method::PATCH, &path).json(body)).await;
    let changed = change(&json!({"metadata": {"c": 3}})).await.ok(200);
    assert_eq!((&changed["metadata"], &changed["expires_at"]), (&json!({"c": 3}), &vm["expires_at"]));
    // The time to live counts from the change.
    let before = Timestamp::now();
    let changed = change(&json!({"ttl_ms": 600_000})).await.ok(200);
    let expires_at: Timestamp = changed["expires_at"].as_str().unwrap().parse().unwrap();
    let expected = before.as_millisecond()..=Timestamp::now().as_millisecond();
    assert!(expected.contains(&(expires_at.as_millisecond() - 600_000)), "{changed}");
    let changed = change(&json!({"ttl_ms": null})).await.ok(200);
    assert_eq!((&changed["metadata"], &changed["expires_at"]), (&json!({"c": 3}), &Value::Null));
    assert_eq!(change(&json!({})).await.ok(200)["metadata"], json!({"c": 3}));
    for (wrong, code, named) in [
        (json!({"ttl_ms": 0}), "invalid_value", "ttl_ms"),
        (json!({"ttl_ms": -5}), "invalid_value", "ttl_ms"),
        (json!({"ttl_ms": "1h"}), "invalid_value", "ttl_ms"),
        (json!({"metadata": []}), "invalid_value", "metadata"),
        (json!({"metadata": {"x": "y".repeat(70_000)}}), "invalid_value", "64 KiB"),
        (json!({"count": 2}), "unknown_field", "count"),
    ] {
        let answer = change(&wrong).await;
        assert!(answer.refused(400, code).contains(named), "{wrong}: {answer:?}");
    }
    assert_eq!(skep.get(&path).await.ok(200)["metadata"], json!({"c": 3}), "a refusal changes nothing");
    change(&json!({"ttl_ms": 500})).await.ok(200);
    skep.wait_for_end_of(vm["pid"].as_u64().unwrap()).await;
    change(&json!({})).await.refused(404, "unknown_vm");
}

async fn unknown_vms(skep: &Skep) {
    let own = std::process::id();
    for name in ["1", "abc", "1099511627776", "-1", "0", &skep.pid().to_string(), &own.to_string()] {
        let path = format!("/api/swarm/vm/{name}");
        skep.get(&path).await.refused(404, "unknown_vm");
        skep.delete(&path).await.refused(404, "unknown_vm");
        let exec = skep.post(&format!("{path}/exec"), &json!({"command": "true"})).await;
        exec.refused(404, "unknown_vm");
    }
    let unknown = skep.post("/api/swarm/boot", &json!({"template": "nothing"})).await;
    assert!(unknown.refused(404, "unknown_template").contains("nothing"));
}

#[tokio::test]
async fn more_than_the_machine_holds_names_the_budget_and_boots_none() {
    let data_dir = tempfile::tempdir().unwrap();
    let skep = Skep::start_on(data_dir, &["--max-vms", "3"]).await;
    skep.boot(2).await;
    let answer = skep.post("/api/swarm/boot", &json!({"count": 2})).await;
    assert!(answer.refused(503, "no_capacity").contains('3'), "{answer:?}");
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    assert_eq!(skep.count().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rush_for_memory_is_served_as_far_as_it_goes() {
    let data_dir = tempfile::tempdir().unwrap();
    // Room for five: twice the memory may be promised.
    let skep = Skep::start_on(data_dir, &["--memory-mb", "650", "--memory-overcommit", "2"]).await;
    let two = json!({"count": 2});
    let answers = join_all((0..8).map(|_| skep.post("/api/swarm/boot", &two))).await;
    let booted = answers.iter().filter(|answer| answer.status == 201).count();
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        let message = answer.refused(503, "no_capacity");
        for named in ["650 MiB for VMs", "up to 1300 MiB", "512 MiB were asked for"] {
            assert!(message.contains(named), "{named}: {message}");
        }
    }
    assert_eq!(booted, 2);
    assert_eq!(skep.count().await, 4);
    assert_eq!(skep.boot(1).await.len(), 1);
}

async fn console(skep: &Skep, pid: u64) {
    skep.exec(pid, "echo canary-console > /dev/console").await;
    eventually("the line on the console", async || {
        let console = skep.get(&format!("/api/swarm/vm/{pid}/console")).await.ok(200);
        console["console"].as_str().unwrap().contains("canary-console")
    })
    .await;
}
