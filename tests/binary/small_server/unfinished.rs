//! Bodies of one account that do not end.

use std::{sync::Arc, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use super::{
    group::{LimitedServer, Peak},
    is_answered,
};
use crate::harness::{Skep, Tenant, eventually};

/// Some fewer than a server accepts from one address.
pub(super) const CONNECTIONS: usize = 1_000;
/// The length that each body declares. All of them have twice the memory of the server.
const BODY_BYTES: usize = 1 << 20;

/// Sends requests without the last byte of their bodies, and leaves their connections open until the set is dropped.
async fn send_unfinished(skep: &Skep) -> JoinSet<()> {
    let headers =
        format!("content-type: application/json\r\ncontent-length: {BODY_BYTES}\r\nexpect: 100-continue\r\n");
    let head = skep.head("POST /api/files/write", &headers);
    let body = Arc::<[u8]>::from(vec![b' '; BODY_BYTES - 1]);
    let mut requests = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut connection = skep.raw_connection().await;
        connection.send(&head).await;
        // It says so when it begins to read the body.
        connection.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
        let body = Arc::clone(&body);
        requests.spawn(async move {
            connection.send(body).await;
            std::future::pending::<()>().await;
        });
    }
    requests
}

/// Waits until the server takes no more of what was sent.
pub(super) async fn settles(peak: &Peak) {
    let mut before = 0;
    eventually("the memory of the server", async || {
        sleep(Duration::from_secs(1)).await;
        let now = peak.bytes();
        std::mem::replace(&mut before, now) == now
    })
    .await;
}

/// Lets this process open as many files as it may.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Writes a file whose body waits for memory.
pub(super) async fn write_much(tenant: &Tenant<'_>) {
    let root = tenant.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    let write = json!({"path": format!("{root}/file"), "content": "x".repeat(20 << 20)});
    tenant.post("/api/files/write", &write).await.ok(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_end_leave_a_small_server_alive() {
    raise_open_files();
    let skep = Skep::start().await;
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    let unfinished = send_unfinished(&skep).await;
    settles(&limited.peak).await;
    is_answered(&other).await;
    println!("{CONNECTIONS} bodies of 1 MiB that do not end: peak {} MiB", limited.peak.bytes() >> 20);
    limited.assert_alive(&skep);
    // What they had reserved is free again.
    drop(unfinished);
    write_much(&other).await;
    assert_eq!(skep.health().await["checks"]["store"], "ok");
}
