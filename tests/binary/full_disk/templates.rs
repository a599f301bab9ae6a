//! Templates on a full disk.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{SIZE, with_a_small_disk};
use crate::{
    harness::{Skep, eventually_empty, eventually_within},
    templates::{STEP_OF_BUILD, events, run},
};

/// The folders of single templates. Beside them is a lock file, which stays.
fn template_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

async fn record_after_the_build(skep: &Skep, name: &str) -> Value {
    let mut seen = Value::Null;
    eventually_within(STEP_OF_BUILD, "the end of the build", async || {
        seen = skep.get(&format!("/api/templates/{name}")).await.ok(200);
        seen["state"] != "building"
    })
    .await;
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_for_which_there_is_no_room_fails_with_the_reason() {
    let (skep, folder) = with_a_small_disk("templates", SIZE).await;
    let begun = skep.post("/api/templates", &json!({"name": "big", "from": "base"})).await.ok(202);
    assert_eq!(begun["state"], "building");
    let failed = record_after_the_build(&skep, "big").await;
    assert_eq!((&failed["id"], &failed["state"]), (&begun["id"], &json!("failed")));
    let reason = failed["error"].as_str().unwrap();
    assert!(reason.contains("the disk of the server is full"), "{reason}");
    let recorded = events(&skep, "2");
    let kinds: Vec<&str> = recorded.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["template.building", "template.failed"]);
    assert_eq!((&recorded[1]["template"], &recorded[1]["reason"]), (&begun["id"], &failed["error"]));
    skep.post("/api/swarm/boot", &json!({"template": "big"})).await.refused(409, "template_not_ready");
    skep.boot_one().await;
    assert_eq!(template_folders(&folder).len(), 1, "the control: it has a folder until it is deleted");

    skep.delete("/api/templates/big").await.ok(200);
    let (code, _, errors) = run(&skep, &["template", "create", "big"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains(&format!("the template `big` could not be built: {reason}")), "{errors}");
    assert!(errors.contains("`skep template rm big` removes it"), "{errors}");
    let (code, out, errors) = run(&skep, &["template", "rm", "big"]);
    assert_eq!((code, out.as_str()), (Some(0), "big is deleted\n"), "{errors}");
    eventually_empty("the end of the files", async || template_folders(&folder)).await;
}
