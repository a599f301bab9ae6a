//! A template that is removed or damaged while a server runs.

mod thorough;

use serde_json::{Value, json};

use crate::{
    harness::{Skep, eventually_within, images::Images},
    pool::FILL_TIMEOUT,
};

async fn start(data_dir: tempfile::TempDir, images: &Images) -> Skep {
    let options = ["--pool-size", "1", "--image-dir", images.path().to_str().unwrap()];
    Skep::start_on(data_dir, &options).await
}

/// Waits until a VM is parked, and gives its process.
async fn parked(skep: &Skep) -> u64 {
    let mut found = None;
    eventually_within(FILL_TIMEOUT, "a parked VM", async || {
        let status = skep.get("/api/swarm/status").await.ok(200);
        let taken: Vec<&Value> = status["vms"].as_array().unwrap().iter().map(|vm| &vm["pid"]).collect();
        let ready = status["pool"]["base"]["ready"] == 1;
        let vmms = skep.vmms().into_iter().map(u64::from);
        found = vmms.filter(|_| ready).find(|pid| !taken.contains(&&json!(pid)));
        found.is_some()
    })
    .await;
    found.unwrap()
}

fn lines_with(skep: &Skep, text: &str) -> usize {
    skep.log().lines().filter(|line| line.contains(text)).count()
}

/// The damaged templates that the operator is shown.
pub(crate) async fn names_of_damaged(skep: &Skep) -> Vec<String> {
    let system = skep.get("/api/system").await.ok(200);
    let damaged = system["swarm"]["damaged_templates"].as_array().unwrap();
    damaged.iter().map(|entry| entry["template"].as_str().unwrap().to_owned()).collect()
}
