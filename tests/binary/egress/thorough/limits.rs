//! The limits of connections, with small values.

use serde_json::json;
use skep_harness::{eventually, temp_dir};

use crate::{
    egress::{OPTIONS, boot, fetch, world::World},
    harness::Skep,
};

const SMALL: [&str; 6] =
    ["--egress-connections", "3", "--egress-connections-of-all", "4", "--egress-mbit", "8"];

/// Begins connections that stay open, and waits until they have ended or are open.
async fn open(skep: &Skep, vm: u64, count: usize) -> usize {
    let command = format!(
        "rm -f /root/long.*; for i in $(seq {count}); do
            (curl -s -N http://203.0.113.8/slow > /root/long.$i; touch /root/long.$i.over) > /dev/null 2>&1 &
        done"
    );
    skep.output(vm, &command).await;
    let settled = "for i in $(seq 9); do if test -s /root/long.$i; then echo open; elif test -e /root/long.$i.over; \
                   then echo over; fi; done";
    eventually("all connections", async || skep.output(vm, settled).await.lines().count() == count).await;
    skep.output(vm, settled).await.lines().filter(|line| *line == "open").count()
}

#[test]
fn a_vm_at_its_limit_is_refused_and_others_connect() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &[&OPTIONS[..], &SMALL].concat()).await;
        let [greedy, other] = [boot(&skep, json!("all")).await, boot(&skep, json!("all")).await];
        assert_eq!(open(&skep, greedy, 5).await, 3);
        let report = skep.get(&format!("/api/swarm/vm/{greedy}/egress")).await.ok(200);
        assert_eq!((&report["open_connections"], &report["refused"]), (&json!(3), &json!(2)), "{report}");
        assert!(report["tries"].to_string().contains("too many connections"), "{report}");
        assert_eq!(fetch(&skep, other, "http://203.0.113.7/").await.as_deref(), Ok("world 203.0.113.7"));

        // All together are at their limit: a further connection waits, here until curl gives up.
        assert_eq!(open(&skep, other, 1).await, 1);
        assert_eq!(fetch(&skep, other, "-m 5 http://203.0.113.7/").await, Err(28));
        skep.output(greedy, "pkill curl").await;
        eventually("a place", async || fetch(&skep, other, "http://203.0.113.7/").await.is_ok()).await;
    });
}
