//! Sends the most expensive valid requests several times at once to a server with 512 MiB: it survives, and another account is
//! served meanwhile. `--nocapture` shows the peak of each.

mod bodies;
mod group;
mod http2;
mod requests;
mod thorough;
mod unfinished;
mod unread;
mod worst_case;

use std::{collections::BTreeSet, time::Instant};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use serde_json::json;

use self::{
    group::{LimitedServer, MemoryGroup, Peak},
    requests::Request,
};
use crate::harness::{Skep, Tenant};

/// The memory limit of keeper and server together, in bytes.
const LIMIT_BYTES: u64 = 512 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_reads_and_bodies_leave_a_small_server_alive() {
    let skep = Skep::start().await;
    let largest = worst_case::prepare_some(&skep).await;
    leave_it_alive(skep, &largest).await;
}

/// Fails if these requests end a small server, or keep it from serving another account.
async fn leave_it_alive(skep: Skep, worst: &[Request]) {
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    // The helper has a control group of its own, which it creates before the limit is set.
    let limited = LimitedServer::of(&skep);
    let mut refused = Vec::new();
    for request in worst {
        let (peak, begun) = (Peak::of(limited.server), Instant::now());
        let calls = join_all((0..request.times).map(|number| request.send(&skep, number)));
        let (answers, ()) = tokio::join!(calls, is_answered(&other));
        is_answered(&other).await;
        let statuses: BTreeSet<u16> = answers.iter().map(|answer| answer.status).collect();
        let bytes = answers.iter().map(|answer| answer.bytes).max().unwrap_or_default();
        println!(
            "{:44} {:2} at once: peak {:4} MiB, answers of up to {:6} KiB, {statuses:?}, {:?}",
            request.name,
            request.times,
            peak.bytes() >> 20,
            bytes >> 10,
            begun.elapsed(),
        );
        if !statuses.is_subset(&request.expected) {
            refused.push((request.name, statuses));
        }
    }
    leave_answers_unread(&skep, &other, worst).await;
    assert!(refused.is_empty(), "other answers than expected: {refused:#?}");
    limited.assert_alive(&skep);
    assert_eq!(skep.health().await["checks"]["store"], "ok");
}

/// Leaves forty answers of 32 MiB unread: they take the account's share of the server's memory, and nothing of
/// another's.
async fn leave_answers_unread(skep: &Skep, other: &Tenant<'_>, worst: &[Request]) {
    let peak = Peak::of(skep.server_pid().unwrap());
    let text = worst.iter().find(|request| request.name == worst_case::LARGEST_READ).unwrap();
    let mut unread: FuturesUnordered<_> = (0..40).map(|_| text.request(skep, 0).send()).collect();
    let mut begun = Vec::new();
    while begun.len() < 4 {
        begun.push(unread.next().await.unwrap().unwrap());
    }
    is_answered(other).await;
    let root = other.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    let (path, content) = (format!("{root}/file"), "x".repeat(20 << 20));
    other.post("/api/files/write", &json!({"path": path, "content": content})).await.ok(201);
    other.get(&format!("/api/files/read?path={path}")).await.ok(200);
    println!("{:44} 40 at once: peak {:4} MiB", "answers of 32 MiB that are left unread", peak.bytes() >> 20);
}

/// Checks that another account is served: from memory, from the store, from files.
async fn is_answered(other: &Tenant<'_>) {
    let root = other.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    other.get("/api/keys").await.ok(200);
    other.get(&format!("/api/ls?path={root}")).await.ok(200);
}

/// The control of the limit: a process that exceeds it is killed.
#[test]
fn a_process_that_takes_more_than_its_group_may_is_killed() {
    let mut hog = std::process::Command::new("/bin/sh")
        .args(["-c", "read go; head -c 1G /dev/zero | tail -n 1 | wc -c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let group = MemoryGroup::around(&[hog.id()], 64 << 20);
    drop(hog.stdin.take());
    let output = hog.wait_with_output().unwrap();
    assert_ne!(String::from_utf8_lossy(&output.stdout).trim(), "1073741824");
    assert!(group.killed() > 0);
}
