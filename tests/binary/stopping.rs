//! SIGTERM during a burst of requests: every request is answered, and the answers still hold after the next start.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use skep_harness::process::go_on;
use tokio::task::JoinHandle;

use crate::{
    harness::{Skep, eventually, try_send},
    takeover::{assert_in_order, ids, listed},
};

/// Clients that boot at the same time, and the VMs that each asks for.
const CLIENTS: u64 = 3;
const EACH: u64 = 2;
/// Requests that come after the signal.
const LATE: usize = 4;

/// Memory reserved by boots, also by those in progress.
async fn reserved_mb(skep: &Skep) -> u64 {
    skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_given_during_a_stop_still_hold_after_the_next_start() {
    let mut skep = Skep::start().await;
    let vm = skep.boot(1).await;
    let (kept, vmm) = (ids(&vm), u32::try_from(vm[0]["pid"].as_u64().unwrap()).unwrap());
    let one_mb = reserved_mb(&skep).await;
    let boot = |count: u64| {
        let request = skep.request(Method::POST, "/api/swarm/boot").json(&json!({"count": count}));
        tokio::spawn(try_send(request))
    };
    let burst: Vec<_> = (0..CLIENTS).map(|_| boot(EACH)).collect();
    let late = (0..LATE).map(|_| skep.request(Method::POST, "/api/swarm/boot").json(&json!({"count": 1})));
    let late: Vec<_> = late.collect();
    // A request stays under way while a VMM of it stands still.
    let mut stopped = Vec::new();
    eventually("all requests under way", async || {
        stopped = skep.stop_vmms_except(&[vmm]);
        !stopped.is_empty() && reserved_mb(&skep).await == one_mb * (1 + CLIENTS * EACH)
    })
    .await;
    assert!(!burst.iter().all(JoinHandle::is_finished), "the burst was over before its VMMs were stopped");
    skep.ask_to_stop();
    let late: Vec<_> = late.into_iter().map(|request| tokio::spawn(try_send(request))).collect();
    eventually("the shutdown", async || skep.log().contains("shutting down")).await;
    stopped.into_iter().for_each(go_on);
    // The server ends while they wait.
    let stopping = tokio::task::spawn_blocking(move || skep.stop_and_leave_vms());

    let mut answered = kept;
    for answer in join_all(burst).await {
        let answer = answer.unwrap().expect("a request that was under way is answered");
        match answer.status.as_u16() {
            201 => answered.extend(ids(answer.body["vms"].as_array().unwrap())),
            _ => assert!(answer.headers.contains_key("skep-error"), "{answer:?}"),
        }
    }
    for answer in join_all(late).await {
        // Either the connection is refused, or the answer is valid.
        if let Ok(answer) = answer.unwrap()
            && answer.status == 201
        {
            answered.extend(ids(answer.body["vms"].as_array().unwrap()));
        }
    }
    let skep = stopping.await.unwrap().start().await;
    assert_eq!(ids(&listed(&skep).await), answered, "exactly the VMs of successful answers exist");
    assert_in_order(&skep).await;
}
