//! Many rounds.

use std::collections::BTreeSet;

use super::{full, with_pool};

#[tokio::test]
async fn the_pool_is_drained_and_refilled_while_requests_go_on() {
    let skep = with_pool(2, &[]).await;
    let mut ids = BTreeSet::new();
    for round in 0..6 {
        let vms = skep.boot(2).await;
        for vm in &vms {
            let pid = vm["pid"].as_u64().unwrap();
            assert_eq!(
                skep.output(pid, &format!("cat /root/mark; echo {round} > /root/mark; echo new")).await,
                "new"
            );
            assert!(ids.insert(vm["id"].to_string()), "{vm} was there before");
            skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
        }
    }
    full(&skep).await;
    assert_eq!(skep.count().await, 0);
}
