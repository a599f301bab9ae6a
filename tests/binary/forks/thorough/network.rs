//! A copy that has the address of its original, which has ended.

use std::net::SocketAddr;

use serde_json::json;

use crate::{
    copies::{path_of, pid_of},
    forks::network::{CONNECT, is_echoed, start, text},
    harness::{Skep, connect_in_namespace, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_an_ended_original_end_in_a_copy_with_its_address() {
    let skep = Skep::start().await;
    let original = skep.boot(1).await.remove(0);
    start(&skep, &original, CONNECT, text(&original, "ip"), "/dev/shm/connection").await;
    skep.post(&format!("{}/snapshot", path_of(&original)), &json!({"name": "connected"})).await.ok(201);
    // A new server and keeper assign the addresses from the first one again.
    let skep = Skep::start_on(skep.stop(), &[]).await;
    let booted = skep.post("/api/swarm/boot", &json!({"template": "connected"})).await.ok(201);
    let copy = &booted["vms"][0];
    assert_eq!(copy["ip"], original["ip"]);
    eventually("the end of the copy's connection", async || {
        skep.output(pid_of(copy), "cat /dev/shm/connection").await.starts_with("ended")
    })
    .await;
    // Programs that listen on that address serve it on.
    let listener = format!("{}:8001", text(copy, "ip")).parse::<SocketAddr>().unwrap();
    is_echoed(&mut connect_in_namespace(&skep.namespace(), listener).await.unwrap());
}
