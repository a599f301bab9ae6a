//! Kills at each step of a pause and of a resume, calls that a pause interrupts, and many requests at once.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use super::{WHILE, at, booted, counters, requests_at_once_end_in_one_state};
use crate::{
    harness::{Skep, eventually, send, temp_dir},
    steps::{Log, OPTIONS, Step, Victim},
    takeover::{assert_in_order, listed},
};

/// What the log says after the steps of both requests, which take turns.
const STEPS: [(&str, Step); 4] = [
    ("pause", &["the processors of VM", "are stopped"]),
    ("resume", &["the processors of VM", "are started"]),
    ("pause", &["is paused on record"]),
    ("resume", &["is resumed on record"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_a_pause_or_a_resume_leaves_the_state_on_record() {
    let mut skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let [counting, control] = booted(&skep).await;
    let victims = [Victim::Server, Victim::Keeper, Victim::Both];
    for (victim, (verb, step)) in victims.into_iter().flat_map(|victim| STEPS.map(|step| (victim, step))) {
        let path = format!("{}/{verb}", at(&skep, &counting).path);
        let log = Log::from_now(&skep);
        let request = tokio::spawn(skep.request(Method::POST, &path).json(&json!({})).send());
        skep = victim.kill_at(step, log, skep).await;
        let answered = request.await.unwrap().is_ok_and(|answer| answer.status() == 200);
        let (vm, other) = (at(&skep, &counting), at(&skep, &control));
        let state = skep.get(&vm.path).await.ok(200)["state"].clone();
        let asked_for = if verb == "pause" { "paused" } else { "running" };
        assert!(
            !answered || state == asked_for,
            "{victim:?} killed after {step:?}: {state} after an answered {verb}"
        );
        other.counts_on().await;
        let number = vm.last().await;
        if state == "running" {
            vm.passes(number + WHILE).await;
            vm.assert_clock_is_right().await;
        } else {
            other.counts_on().await;
            assert_eq!(vm.last().await, number, "{victim:?} killed after {step:?}");
        }
        // The next round asks for the other state.
        if asked_for == "paused" {
            vm.pause().await
        } else {
            vm.resume().await
        };
    }
    at(&skep, &counting).resume().await;
    assert_eq!(listed(&skep).await.len(), 2);
    assert_in_order(&skep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_paused_vm_goes_on_or_reaches_its_limit() {
    let skep = Skep::start().await;
    let [vm, other] = counters(&skep).await;
    let exec = |command: &str, timeout: u64| {
        let request = skep.request(Method::POST, &format!("{}/exec", vm.path));
        let request = request.json(&json!({"command": command, "timeout": timeout}));
        tokio::spawn(async move { send(request).await })
    };
    let slow = "touch /dev/shm/begun; while [ ! -e /dev/shm/go ]; do sleep 0.1; done; echo went on";
    let goes_on = exec(slow, 600_000);
    let reaches_its_limit = exec("touch /dev/shm/second; sleep 600", 10_000);
    let begun = async || skep.output(vm.pid, "ls /dev/shm").await;
    eventually("both commands", async || begun().await.contains("begun") && begun().await.contains("second"))
        .await;
    vm.pause().await;
    other.counts_on().await;
    assert!(!goes_on.is_finished());
    // Either the guest ended it right before the pause, or the server gives up.
    let limited = reaches_its_limit.await.unwrap();
    assert!([200, 504].contains(&limited.status.as_u16()), "{limited:?}");
    vm.resume().await;
    skep.output(vm.pid, "touch /dev/shm/go").await;
    assert_eq!(goes_on.await.unwrap().ok(200)["stdout"], "went on\n");
    vm.assert_clock_is_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_and_resumes_at_once_end_in_one_state_or_with_the_vm() {
    let skep = Skep::start().await;
    let [vm, other] = counters(&skep).await;
    let named = skep.request(Method::PATCH, &vm.path).json(&json!({"name": "sleeper"}));
    send(named).await.ok(200);
    for _ in 0..4 {
        requests_at_once_end_in_one_state(&skep, &vm, &other).await;
    }
    // An end among pauses and resumes.
    let requests = ["pause", "resume", "pause", "resume"].map(|verb| format!("{}/{verb}", vm.path));
    let body = json!({});
    let requests = join_all(requests.iter().map(|path| skep.post(path, &body)));
    let (answers, ended) = tokio::join!(requests, skep.delete(&vm.path));
    ended.ok(200);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(answer.status, 404, "{answer:?}");
    }
    assert_eq!(listed(&skep).await.len(), 1);
    assert_in_order(&skep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_vm_ends_with_its_account() {
    let skep = Skep::start().await;
    let tenant = skep.tenant("doomed").await;
    let vm = tenant.boot().await;
    tenant.post(&format!("/api/swarm/vm/{}/pause", vm["pid"]), &json!({})).await.ok(200);
    let account = format!("/api/accounts/{}", tenant.id);
    skep.delete(&account).await.refused(409, "account_in_use");
    skep.delete(&format!("{account}?force=true")).await.ok(200);
    skep.wait_for_end_of(vm["pid"].as_u64().unwrap()).await;
}
