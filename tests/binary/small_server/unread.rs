//! Clients that request large answers and do not read them.

use std::fs::{self, File};

use tokio::task::JoinSet;

use super::{
    group::LimitedServer,
    is_answered,
    unfinished::{CONNECTIONS, raise_open_files, settles},
};
use crate::harness::Skep;

/// The size of the file that each request reads as JSON. Its characters are escaped, so each answer is six times as long, and all
/// answers together exceed the memory of the server ten times.
const FILE_BYTES: usize = 900 << 10;
/// The size of the file that each request reads as it is: more than the sockets of a connection hold.
const LARGE_FILE_BYTES: u64 = 32 << 20;

/// Sends a request on each of as many connections, and leaves them open until the set is dropped.
async fn leave_unread(skep: &Skep, head: &str) -> JoinSet<()> {
    let mut unread = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut connection = skep.raw_connection().await;
        connection.send(head).await;
        unread.spawn(async move {
            let _connection = connection;
            std::future::pending::<()>().await;
        });
    }
    unread
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_leave_a_small_server_alive() {
    raise_open_files();
    let skep = Skep::start().await;
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    fs::write(format!("{root}/text"), vec![1; FILE_BYTES]).unwrap();
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    let unread = leave_unread(&skep, &skep.head(&format!("GET /api/files/read?path={root}/text"), "")).await;
    settles(&limited.peak).await;
    is_answered(&other).await;
    println!("{CONNECTIONS} unread answers of 5.3 MiB: peak {} MiB", limited.peak.bytes() >> 20);
    limited.assert_alive(&skep);
    // The reservations end with the connections.
    drop(unread);
    other.get(&format!("/api/files/read?path={root}/text")).await.refused(403, "path_outside_roots");
    skep.get(&format!("/api/files/read?path={root}/text")).await.ok(200);
    assert_eq!(skep.health().await["checks"]["store"], "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_nobody_reads_to_the_end_leave_a_small_server_alive() {
    raise_open_files();
    let skep = Skep::start().await;
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    File::create(format!("{root}/large")).unwrap().set_len(LARGE_FILE_BYTES).unwrap();
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    let first_line = format!("GET /api/files/read?path={root}/large");
    let unread = leave_unread(&skep, &skep.head(&first_line, "accept: application/octet-stream\r\n")).await;
    settles(&limited.peak).await;
    is_answered(&other).await;
    println!("{CONNECTIONS} unread files: peak {} MiB", limited.peak.bytes() >> 20);
    limited.assert_alive(&skep);
    drop(unread);
    skep.get(&format!("/api/files/read?path={root}/large&limit=1000")).await.ok(200);
}
