//! Settings of a remote, and of the transport to it.

use std::{fs, path::Path};

use super::{attack, set};

#[tokio::test]
async fn no_setting_of_a_remote_starts_a_program() {
    attack("uploadpack", |path, canary| set(path, "remote.origin.uploadpack", &canary.deaf), &[&["fetch"]])
        .await;
    attack(
        "receivepack",
        |path, canary| set(path, "remote.origin.receivepack", &canary.deaf),
        &[&["push", "origin", "HEAD:x"]],
    )
    .await;
    attack(
        "sshCommand",
        |path, canary| {
            set(path, "core.sshCommand", &canary.deaf);
            set(path, "remote.origin.url", "ssh://127.0.0.1:1/x");
        },
        &[&["fetch"]],
    )
    .await;
    attack(
        "ext",
        |path, canary| {
            set(path, "protocol.allow", "always");
            set(path, "protocol.ext.allow", "always");
            set(path, "remote.origin.url", &format!("ext::{}", canary.deaf));
        },
        &[&["fetch"]],
    )
    .await;
    attack(
        "insteadOf",
        |path, canary| {
            set(path, "protocol.ext.allow", "always");
            set(path, &format!("url.ext::{} .insteadOf", canary.deaf), "/");
        },
        &[&["fetch"]],
    )
    .await;
    attack(
        "alternateRefsCommand",
        |path, canary| {
            let remote = Path::new(path).parent().unwrap().join("remote.git");
            set(remote.to_str().unwrap(), "core.alternateRefsCommand", &canary.deaf);
            let borrowed = Path::new(path).parent().unwrap().join("elsewhere/.git/objects");
            fs::write(remote.join("objects/info/alternates"), format!("{}\n", borrowed.display())).unwrap();
        },
        &[&["push", "-f", "origin", "HEAD:refs/heads/control"]],
    )
    .await;
}
