//! The command of a boot, whose VM is paused to disk and resumed while it runs.

use reqwest::Method;
use serde_json::json;

use super::run;
use crate::harness::{Skep, eventually, send};

/// Prints numbers until the file exists.
const COUNT: &str = "number=0
while [ ! -e /root/end ]; do number=$((number + 1)); echo $number; sleep 0.01; done
echo over; exit 3";

#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_a_boot_is_followed_to_its_end_over_a_pause_to_disk() {
    let skep = Skep::start().await;
    let made = skep.post("/api/tickets", &json!({"title": "a", "max_attempts": 1})).await.ok(201);
    let ticket = format!("/api/tickets/{}", made["id"].as_str().unwrap());
    let order = json!({"ticket": made["id"], "command": COUNT});
    let booted = skep.post("/api/swarm/boot", &order).await.ok(201);
    let vm = booted["vms"][0]["id"].as_str().unwrap();
    let log = format!("{ticket}/log");
    let size = async || skep.get(&log).await.ok(200)["size_bytes"].as_u64().unwrap();
    let more_output = async || {
        let before = size().await;
        eventually("more output", async || size().await > before).await;
    };
    more_output().await;
    let paused = skep.post(&format!("/api/swarm/vm/{vm}/pause"), &json!({"to": "disk"})).await.ok(200);
    assert_eq!(paused["paused_to"], "disk", "{paused}");
    send(skep.request(Method::POST, &format!("/api/swarm/vm/{vm}/resume"))).await.ok(200);
    more_output().await;
    assert_eq!(skep.get(&ticket).await.ok(200)["status"], "in_progress");
    run(&skep, vm, "touch /root/end").await;
    eventually("the end", async || skep.get(&ticket).await.ok(200)["status"] == "failed").await;
    let history = skep.get(&format!("{ticket}/history")).await.ok(200);
    let attempt = &history["attempts"][0];
    assert_eq!(
        (&attempt["outcome"], &attempt["result"]["exit_code"]),
        (&json!("command_ended"), &json!(3)),
        "{history}"
    );
    let whole = skep.get(&log).await.ok(200);
    let printed = whole["output"].as_str().unwrap();
    let numbers = printed.strip_suffix("over\n").unwrap();
    let expected: String = (1..=numbers.lines().count()).map(|number| format!("{number}\n")).collect();
    assert!(numbers == expected, "numbers are missing, or there twice: {printed}");
}
