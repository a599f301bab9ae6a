//! Answers of one account that nobody reads.

use std::fs;

use tokio::task::JoinSet;

use super::{
    LIMIT_BYTES,
    group::{MemoryGroup, Peak},
    is_answered,
    unfinished::{CONNECTIONS, raise_open_files, settles},
};
use crate::harness::Skep;

/// The length of the file that each request reads. As JSON it has six times that length, and all answers have ten times the memory
/// of the server.
const FILE_BYTES: usize = 900 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_leave_a_small_server_alive() {
    raise_open_files();
    let skep = Skep::start().await;
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    fs::write(format!("{root}/text"), vec![1; FILE_BYTES]).unwrap();
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let server = skep.server_pid().unwrap();
    let group = MemoryGroup::around(&[skep.pid(), server], LIMIT_BYTES);
    let peak = Peak::of(server);
    let head = skep.head(&format!("GET /api/files/read?path={root}/text"), "");
    let mut unread = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut connection = skep.raw_connection().await;
        connection.send(&head).await;
        unread.spawn(async move {
            let _connection = connection;
            std::future::pending::<()>().await;
        });
    }
    settles(&peak).await;
    is_answered(&other).await;
    println!("{CONNECTIONS} answers of 5.3 MiB that nobody reads: peak {} MiB", peak.bytes() >> 20);
    assert_eq!((skep.server_pid(), group.killed()), (Some(server), 0), "a process ran out of memory");
    // What they had reserved is free again.
    drop(unread);
    other.get(&format!("/api/files/read?path={root}/text")).await.refused(403, "path_outside_roots");
    skep.get(&format!("/api/files/read?path={root}/text")).await.ok(200);
    assert_eq!(skep.health().await["checks"]["store"], "ok");
}
