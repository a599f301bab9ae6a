//! The most expensive request of each operation, and many answers of a VM.

use super::{group::LimitedServer, is_answered, leave_it_alive, worst_case};
use crate::harness::Skep;

#[tokio::test(flavor = "multi_thread")]
async fn the_worst_requests_of_all_operations_leave_a_small_server_alive() {
    let skep = Skep::start().await;
    let worst = worst_case::prepare(&skep).await;
    leave_it_alive(skep, &worst).await;
}

/// An answer stays in the VM until the server has memory for it.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_vm_that_nobody_reads_leave_a_small_server_alive() {
    const MOST: usize = 60;
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let pid = vm["pid"].as_u64().unwrap();
    // JSON escapes make the answer six times as long: all answers together exceed the memory of the server twice.
    skep.output(pid, "head -c 3M /dev/zero | tr '\\000' '\\001' > /root/text").await;
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    let head = skep.head(&format!("GET /api/files/read?vm={pid}&path=/root/text"), "");
    let mut unread = Vec::new();
    while unread.len() < MOST {
        let mut connection = skep.raw_connection().await;
        connection.send(&head).await;
        // The first request that is refused for want of memory ends the loop.
        if connection.status().await != 200 {
            break;
        }
        unread.push(connection);
    }
    is_answered(&other).await;
    println!("{} unread answers of 18 MiB: peak {} MiB", unread.len(), limited.peak.bytes() >> 20);
    limited.assert_alive(&skep);
    assert!((1..MOST).contains(&unread.len()), "{}", unread.len());
    drop(unread);
    skep.get(&format!("/api/files/read?vm={pid}&path=/root/text")).await.ok(200);
}
