//! Hooks of copies.

use serde_json::json;

use crate::{
    copies::{fork, path_of, pid_of},
    harness::{Skep, eventually},
};

/// Says as whom it runs, and does not end; nor does the session that it starts.
const HANGS: &str = "#!/bin/sh
id -u > /root/user-of-hook
setsid sleep 98765 &
exec sleep 98765
";
const INSTALL: &str =
    "mkdir -p /etc/skep/fork.d; cd /etc/skep/fork.d; cat > 10-hangs; chmod +x 10-hangs; sync";
const COUNT: &str = "pgrep -fc 'sleep 9876[5]' || true";

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_does_not_end_is_ended_with_all_that_it_started() {
    let skep = Skep::start().await;
    let parent = skep.boot(1).await.remove(0);
    let installed = skep.exec_with(pid_of(&parent), &json!({"command": INSTALL, "stdin": HANGS})).await;
    assert_eq!(installed["exit_code"], 0, "{installed}");

    let copy = fork(&skep, &parent, &json!({})).await.remove(0);
    assert_eq!(skep.output(pid_of(&copy), "cat /root/user-of-hook").await, "0");
    assert_eq!(skep.output(pid_of(&copy), COUNT).await, "0");
    // The server reads the console beside the fork.
    let line = "the hook /etc/skep/fork.d/10-hangs failed";
    let console = format!("{}/console", path_of(&copy));
    eventually("the failure of the hook on the console", async || {
        skep.get(&console).await.ok(200)["console"].as_str().unwrap().contains(line)
    })
    .await;

    // The control: without the limit, both processes keep running.
    let by_hand = "(/etc/skep/fork.d/10-hangs > /dev/null 2>&1 &); \
                   while [ $(pgrep -fc 'sleep 9876[5]') -lt 2 ]; do sleep 0.05; done";
    skep.output(pid_of(&parent), by_hand).await;
    assert_eq!(skep.output(pid_of(&parent), COUNT).await, "2");
}
