//! A template that is damaged, or removed, while a server runs.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};

use super::{lines_with, names_of_damaged, parked, start};
use crate::harness::{
    Skep, eventually, eventually_empty, eventually_within,
    images::{Images, bake, flip_a_bit, images_with_template, templates},
    left_of_bake, temp_dir,
};

/// A step of a bake, such as the boot of the guest, on a machine under load.
const STEP_OF_BAKE: Duration = Duration::from_secs(180);

/// Follows a bake step by step: whole, it may take longer than anything else that tests wait for.
async fn baked(skep: &Skep, times: usize) {
    for step in ["root file system, initial", "boot of the guest", "checksums", "VMs are booted again"] {
        eventually_within(STEP_OF_BAKE, step, async || lines_with(skep, step) == times).await;
    }
}

/// The folder of its template has another memory by now than this VM began with.
async fn is_not_stored(skep: &Skep, vm: &Value) {
    let path = format!("/api/swarm/vm/{}/snapshot", vm["pid"]);
    let refused = skep.post(&path, &json!({"name": "earlier"})).await;
    let message = refused.refused(409, "template_not_ready");
    assert!(message.contains("not on the server any more"), "{message}");
}

#[tokio::test]
async fn a_damaged_template_is_not_used_and_baked_again() {
    let (images, dir) = images_with_template();
    let skep = start(temp_dir(), &images).await;
    parked(&skep).await;
    let users = skep.boot(1).await.remove(0);
    assert_eq!(users["boot"]["source"], "pool");
    let damages: [fn(&Path); 2] = [flip_a_bit, |path| {
        let length = path.metadata().unwrap().len();
        fs::File::options().write(true).open(path).unwrap().set_len(length / 2).unwrap();
    }];
    for (times, damage) in (1..).zip(damages) {
        let parked = parked(&skep).await;
        damage(&dir.join("root.erofs"));
        let refused = skep.post("/api/swarm/boot", &json!({})).await;
        let message = refused.refused(422, "template_damaged");
        assert!(message.contains("root.erofs") && message.contains("baked again"), "{message}");
        assert!(!message.contains(dir.to_str().unwrap()), "{message}");
        let found = || {
            let wanted = format!("the template at {} is damaged: root.erofs", dir.display());
            let log = skep.log();
            let lines = log.lines().filter(|line| line.contains("no VM is booted before"));
            lines.filter(|line| line.contains(&wanted)).count()
        };
        assert_eq!(found(), times, "{}", skep.log());
        eventually("`base` among the damaged templates", async || names_of_damaged(&skep).await == ["base"])
            .await;
        eventually("the end of what was parked", async || {
            !skep.vmms().into_iter().any(|pid| u64::from(pid) == parked)
        })
        .await;
        baked(&skep, times).await;
        assert_eq!(found(), times, "{}", skep.log());
        eventually_empty("damaged templates", async || names_of_damaged(&skep).await).await;
        let pid = skep.boot_one().await;
        assert_eq!(skep.output(pid, "echo whole").await, "whole");
        skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
        let status = skep.get("/api/swarm/status").await.ok(200);
        assert_eq!(status["vms"].as_array().unwrap().len(), 1, "{status}");
        assert_eq!(status["vms"][0]["id"], users["id"], "{status}");
    }
    is_not_stored(&skep, &users).await;
    let mut left = left_of_bake(images.path());
    // The server itself has the image directory on its command line.
    left.retain(|one| !one.contains(" serve "));
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(templates(images.path()), std::slice::from_ref(&dir));
    assert!(bake(images.path()).stderr.is_empty(), "it is whole now");
    a_server_that_ends_takes_its_bake_with_it(skep, &images, &dir).await;
}

async fn a_server_that_ends_takes_its_bake_with_it(skep: Skep, images: &Images, dir: &Path) {
    flip_a_bit(&dir.join("root.erofs"));
    skep.post("/api/swarm/boot", &json!({})).await.refused(422, "template_damaged");
    eventually("the bake's VMM", async || left_of_bake(images.path()).iter().any(|one| one.contains("qemu")))
        .await;
    drop(skep.stop());
    eventually_empty("the remains of the bake", async || left_of_bake(images.path())).await;
    assert_eq!(templates(images.path()), Vec::<std::path::PathBuf>::new());
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
