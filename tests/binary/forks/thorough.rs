//! Copies of copies, also after restarts.

mod ends;
mod hooks;
mod hostile;
pub(crate) mod kills;
mod network;
mod tickets;
mod uploads;

use serde_json::{Value, json};

use crate::{
    copies::{assert_goes_on, begin, fork, pid_of, state},
    harness::Skep,
    takeover::{Victim, assert_in_order},
};

/// Writes to disk and memory what only this VM and its copies have.
async fn mark(skep: &Skep, vm: &Value, word: &str) {
    skep.output(pid_of(vm), &format!("echo {word} >> /root/marks; echo {word} >> /dev/shm/marks")).await;
}

async fn assert_marks(skep: &Skep, vm: &Value, words: &[&str]) {
    let found = skep.output(pid_of(vm), "cmp /root/marks /dev/shm/marks && cat /root/marks").await;
    assert_eq!(found.lines().collect::<Vec<_>>(), words);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_copies_have_all_changes_also_after_restarts() {
    let skep = Skep::start().await;
    let first = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &first).await;
    mark(&skep, &first, "first").await;
    let second = fork(&skep, &first, &json!({})).await.remove(0);
    mark(&skep, &second, "second").await;
    mark(&skep, &first, "later").await;

    let server = skep.server_pid().unwrap();
    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    skep.wait_for_server_after(server).await;
    let (_, from) = state(&skep, &second).await;
    let third = fork(&skep, &second, &json!({})).await.remove(0);
    mark(&skep, &third, "third").await;

    // The keeper's successor has only the files that VMMs hold open.
    let skep = Victim::Keeper.kill(skep).await;
    let fourth = fork(&skep, &third, &json!({})).await.remove(0);
    mark(&skep, &fourth, "fourth").await;
    let skep = Victim::Both.kill(skep).await;
    let sibling = fork(&skep, &first, &json!({"count": 2})).await;

    for (vm, marks) in [
        (&first, &["first", "later"] as &[&str]),
        (&second, &["first", "second"]),
        (&third, &["first", "second", "third"]),
        (&fourth, &["first", "second", "third", "fourth"]),
        (&sibling[0], &["first", "later"]),
        (&sibling[1], &["first", "later"]),
    ] {
        assert_marks(&skep, vm, marks).await;
        assert_goes_on(&skep, vm, &wanted, from).await;
    }
    assert_eq!(fourth["parent"], third["id"]);
    assert_in_order(&skep).await;
}
