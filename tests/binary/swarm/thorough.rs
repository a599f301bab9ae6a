//! Many clients at once.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::json;

use crate::harness::Skep;

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_clients_that_boot_and_delete_are_never_mixed_up() {
    const CLIENTS: u64 = 16;
    let skep = Skep::start_on(tempfile::tempdir().unwrap(), &["--pool-size", "2"]).await;
    let client = async |number: u64| {
        let mut ids = Vec::new();
        for round in 0..2 {
            let mark = format!("{number}-{round}");
            let request = json!({"env": {"MARK": mark}, "metadata": {"mark": mark}});
            let vm = skep.post("/api/swarm/boot", &request).await.ok(201)["vms"][0].clone();
            let path = format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap());
            // Some end theirs unused, some by another name, some after use.
            if !(number + round).is_multiple_of(3) {
                assert_eq!(skep.output(vm["pid"].as_u64().unwrap(), "echo $MARK").await, mark);
                assert_eq!(skep.get(&path).await.ok(200)["metadata"]["mark"], mark.as_str());
            }
            skep.delete(&path).await.ok(200);
            skep.get(&path).await.refused(404, "unknown_vm");
            ids.push(vm["id"].to_string());
        }
        ids
    };
    let ids = join_all((0..CLIENTS).map(client)).await.concat();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 2 * CLIENTS as usize);
    assert_eq!(skep.count().await, 0);
    let used = skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].clone();
    assert_eq!(used, 0, "what was reserved came back");
}
