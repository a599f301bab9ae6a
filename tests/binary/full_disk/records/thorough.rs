//! The disk of the store becomes full between the first record of a snapshot and the last one.

use reqwest::Method;
use serde_json::json;

use super::{Fixture, is_refused};
use crate::{
    copies::{assert_goes_on, path_of},
    full_disk::fill,
    harness::{Answer, eventually, send},
    steps::{Log, Step},
};

/// The store has the record of a template by then, and that of its snapshot later.
const AFTER_FIRST_RECORD: Step = &["the programs of VM", "are frozen"];
/// How often a snapshot is taken until the disk is full before its last record.
const MAX_SNAPSHOTS: u32 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_whose_end_cannot_be_recorded_is_no_template() {
    let mut fixture = Fixture::new().await;
    is_refused("a snapshot", &snapshot_while_the_disk_fills(&fixture).await);
    fixture.runs_on("a snapshot").await;
    fixture.has_only("a snapshot", true, 0).await;
    // Its first record cannot be deleted yet. No VM boots from it.
    let found = fixture.skep.get("/api/templates/stored").await;
    assert!(found.status == 404 || found.body["state"] == "building", "{found:?}");
    let booted = fixture.skep.post("/api/swarm/boot", &json!({"template": "stored"})).await;
    assert!([404, 409].contains(&booted.status.as_u16()), "{booted:?}");

    fixture.free().await;
    eventually("the end of its record", async || {
        fixture.skep.get("/api/templates/stored").await.status == 404
    })
    .await;
    let mut fixture = fixture.with_server_killed().await;
    fixture.has_only_the_base_template("the next server").await;
    fixture.runs_on("the next server").await;
    fixture.call("snapshot", &json!({"name": "stored"})).await.ok(201);
    let booted = fixture.skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
    assert_goes_on(&fixture.skep, &booted["vms"][0], &fixture.wanted, fixture.count).await;
}

/// Fills the disk between the first record of a snapshot and the last one.
async fn snapshot_while_the_disk_fills(fixture: &Fixture) -> Answer {
    for _ in 0..MAX_SNAPSHOTS {
        let (log, filler) = (Log::from_now(&fixture.skep), fixture.filler.clone());
        let path = format!("{}/snapshot", path_of(&fixture.vm));
        let request = fixture.skep.request(Method::POST, &path).json(&json!({"name": "stored"}));
        let request = tokio::spawn(send(request));
        let filling = tokio::task::spawn_blocking(move || {
            log.wait_for(AFTER_FIRST_RECORD);
            fill(&filler);
        });
        filling.await.unwrap();
        let answer = request.await.unwrap();
        if answer.status != 201 {
            return answer;
        }
        // It was on record before the disk was full.
        fixture.free().await;
        fixture.skep.delete("/api/templates/stored").await.ok(200);
    }
    panic!("the disk was never full before the last record");
}
