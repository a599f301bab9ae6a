//! The most expensive request of each operation, and many answers of a VM.

use super::{
    LIMIT_BYTES,
    group::{MemoryGroup, Peak},
    is_answered, leave_it_alive, worst_case,
};
use crate::harness::Skep;

#[tokio::test(flavor = "multi_thread")]
async fn the_worst_requests_of_all_operations_leave_a_small_server_alive() {
    let skep = Skep::start().await;
    let worst = worst_case::prepare(&skep).await;
    leave_it_alive(skep, &worst).await;
}

/// The VM holds what the server has no memory for.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_vm_that_nobody_reads_leave_a_small_server_alive() {
    const MOST: usize = 60;
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let pid = vm["pid"].as_u64().unwrap();
    // As JSON it takes six times as much: all answers have twice the memory of the server.
    skep.output(pid, "head -c 3M /dev/zero | tr '\\000' '\\001' > /root/text").await;
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let server = skep.server_pid().unwrap();
    let group = MemoryGroup::around(&[skep.pid(), server], LIMIT_BYTES);
    let peak = Peak::of(server);
    let head = skep.head(&format!("GET /api/files/read?vm={pid}&path=/root/text"), "");
    let mut unread = Vec::new();
    while unread.len() < MOST {
        let mut connection = skep.raw_connection().await;
        connection.send(&head).await;
        // The first one that waits in vain ends the loop.
        if connection.status().await != 200 {
            break;
        }
        unread.push(connection);
    }
    is_answered(&other).await;
    println!("{} answers of 18 MiB that nobody reads: peak {} MiB", unread.len(), peak.bytes() >> 20);
    assert_eq!((skep.server_pid(), group.killed()), (Some(server), 0), "a process ran out of memory");
    assert!((1..MOST).contains(&unread.len()), "{}", unread.len());
    drop(unread);
    skep.get(&format!("/api/files/read?vm={pid}&path=/root/text")).await.ok(200);
}
