//! Drivers for filters, merges and diffs that the attributes of a repository choose.

use std::fs;

use super::{Attack, Canary, attack, attack_at_once, set};
use crate::git::git;

fn attributes(path: &str, text: &str) {
    fs::write(format!("{path}/.git/info/attributes"), text).unwrap();
}

/// Filters all files by this driver.
fn filter(path: &str, kind: &str, canary: &Canary) {
    set(path, &format!("filter.a=b.c.{kind}"), &canary.program);
    set(path, "filter.a=b.c.required", "true");
    fs::write(format!("{path}/.gitattributes"), "").unwrap();
}

#[tokio::test]
async fn no_driver_that_a_repository_names_is_started() {
    attack_at_once(&[
        // First, because its set-up changes files.
        Attack {
            name: "merge driver",
            set_up: &|path, canary| {
                for branch in ["left", "right"] {
                    git(path, &["checkout", "-q", "-b", branch, "main"]);
                    fs::write(format!("{path}/file"), branch).unwrap();
                    git(path, &["commit", "-qam", branch]);
                }
                git(path, &["checkout", "-q", "main"]);
                set(path, "merge.x.driver", &format!("{} %A", canary.program));
                attributes(path, "* filter=a=b.c merge=x\nfile diff=x\nother diff=y\n");
            },
            control: &[&["checkout", "-qf", "left"], &["merge", "right"]],
        },
        Attack {
            name: "clean",
            set_up: &|path, canary| filter(path, "clean", canary),
            control: &[&["add", "."]],
        },
        Attack {
            name: "smudge",
            set_up: &|path, canary| filter(path, "smudge", canary),
            control: &[&["checkout", "-f", "HEAD", "--", "file"]],
        },
        Attack {
            name: "textconv",
            set_up: &|path, canary| set(path, "diff.x.textconv", &canary.program),
            control: &[&["diff"]],
        },
        Attack {
            name: "command",
            set_up: &|path, canary| set(path, "diff.y.command", &canary.program),
            control: &[&["diff"]],
        },
    ])
    .await;
    // Git prefers it to the other filters.
    attack(
        "process",
        |path, canary| {
            filter(path, "process", canary);
            attributes(path, "* filter=a=b.c\n");
        },
        &[&["add", "."], &["checkout", "-f", "HEAD", "--", "file"]],
    )
    .await;
}
