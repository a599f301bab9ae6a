//! Measures a real server with VMs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skep_harness::binary::{Skep, answer, eventually, output_of, step};

fn bench(server: &Skep, options: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep-bench"));
    command.args(options.split(' ')).env("SKEP_URL", &server.url).env("SKEP_API_KEY", &server.key);
    command
}

fn output(server: &Skep, options: &str) -> Output {
    output_of(&mut bench(server, options))
}

/// The runs of a report, by mode.
fn runs(report: &Value) -> Vec<(&str, &Value)> {
    report["runs"].as_array().unwrap().iter().map(|run| (run["mode"].as_str().unwrap(), run)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn boots_out_of_the_pool_are_measured_and_no_vm_is_left() {
    let server = &Skep::start_on(tempfile::tempdir().unwrap(), &["--pool-size", "1", "--max-vms", "7"]).await;
    let report = answer(&output(server, "-n 1 -c 1 --every 10ms --commands 1 --idle 300ms --json"));
    let modes: Vec<&str> = runs(&report).iter().map(|(mode, _)| *mode).collect();
    assert_eq!(modes, ["sequential", "staggered", "burst"]);
    for (mode, run) in runs(&report) {
        assert_eq!((&run["succeeded"], &run["success_rate"]), (&json!(1), &json!(1.0)), "{mode}: {run}");
        let group = &run["groups"][0];
        assert_eq!((&group["source"], &group["vms"]), (&json!("pool"), &json!(1)), "{mode}: {run}");
        let p50 = |figure: &str| group[figure]["p50"].as_f64().unwrap();
        assert!(p50("tti_ms") > p50("ready_ms") && p50("ready_ms") > 0.0, "{mode}: {run}");
        assert!(p50("proportional_mb") > p50("private_mb") && p50("private_mb") > 1.0, "{mode}: {run}");
        assert!(p50("private_mb") >= p50("anonymous_mb") && p50("anonymous_mb") > 1.0, "{mode}: {run}");
        // A refill alone takes tens of milliseconds of a processor.
        let cpu = run["cost"]["cpu_ms_per_vm"].as_f64().unwrap();
        assert!(cpu > run["cost"]["server_cpu_ms_per_vm"].as_f64().unwrap() && cpu > 20.0, "{mode}: {run}");
    }
    assert!(report["commands"]["elapsed_ms"]["max"].as_f64() > Some(0.0), "{report}");
    let idle = &report["idle"];
    assert_eq!((&idle["running"]["vms"], &idle["parked"]["vms"]), (&json!(1), &json!(1)), "{report}");
    assert_eq!(server.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn cold_boots_are_measured_failures_are_named_and_a_signal_ends_the_vms() {
    let server = Skep::start_on(tempfile::tempdir().unwrap(), &["--max-vms", "3"]).await;
    step("cold boots", async { cold_boots(&server) }).await;
    let [one, other] = [server.boot_one().await, server.boot_one().await];
    step("boots that fail", async { boots_that_fail(&server) }).await;
    server.delete(&format!("/api/swarm/vm/{one}")).await.ok(200);
    for signal in [Signal::INT, Signal::HUP] {
        step("a signal", ended_by_a_signal(&server, other, signal)).await;
    }
}

fn cold_boots(server: &Skep) {
    let report = answer(&output(server, "-n 1 --mode sequential --commands 0 --idle 0s --json"));
    assert_eq!(report["runs"][0]["groups"][0]["source"], "cold", "{report}");
    let refused = output(server, "--source pool");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--pool-size"), "{refused:?}");
}

/// Requests two VMs where there is room for one.
fn boots_that_fail(server: &Skep) {
    let failed = output(server, "-n 2 -c 2 --mode burst --commands 0 --idle 0s --json");
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let report: Value = serde_json::from_slice(&failed.stdout).unwrap();
    let run = &report["runs"][0];
    assert_eq!((&run["succeeded"], &run["success_rate"]), (&json!(0), &json!(0.0)), "{run}");
    assert_eq!(run["failures"].as_array().unwrap().len(), 2, "{run}");
    // A failure that occurs twice is printed once.
    assert_eq!(String::from_utf8_lossy(&failed.stderr).lines().count(), 1, "{failed:?}");
}

/// The command ends its own VMs, and not the other one.
async fn ended_by_a_signal(server: &Skep, other: u64, signal: Signal) {
    let mut child = bench(server, "-n 1000 -c 2 --mode burst").stdout(Stdio::null()).spawn().unwrap();
    eventually("its VMs", async || server.count().await > 1).await;
    kill_process(Pid::from_child(&child), signal).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + signal.as_raw()));
    assert_eq!(server.count().await, 1);
    assert_eq!(server.output(other, "echo alive").await, "alive");
}
