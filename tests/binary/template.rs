//! A template that is removed while a server runs.

mod thorough;

use std::fs;

use serde_json::{Value, json};

use crate::{
    harness::{
        Skep, eventually_within,
        images::{Images, images_with_template},
        temp_dir,
    },
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

#[tokio::test]
async fn a_template_whose_folder_goes_is_served_on_and_baked_at_the_next_start() {
    let (images, dir) = images_with_template();
    let skep = start(temp_dir(), &images).await;
    parked(&skep).await;
    fs::remove_dir_all(&dir).unwrap();
    let vms = skep.boot(2).await;
    let mut sources: Vec<&str> = vms.iter().map(|vm| vm["boot"]["source"].as_str().unwrap()).collect();
    sources.sort_unstable();
    assert_eq!(sources, ["cold", "pool"]);
    for vm in &vms {
        assert_eq!(skep.output(vm["pid"].as_u64().unwrap(), "ls /bin/sh").await, "/bin/sh");
    }
    assert_eq!(lines_with(&skep, "damaged") + lines_with(&skep, "bake: "), 0, "{}", skep.log());

    let skep = start(skep.stop(), &images).await;
    assert!(lines_with(&skep, "bake: checksums") > 0, "{}", skep.log());
    let pid = skep.boot_one().await;
    assert_eq!(skep.output(pid, "echo baked").await, "baked");
    assert!(dir.is_dir());
}
