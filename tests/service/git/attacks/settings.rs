//! Settings of a repository and of its submodules that name programs: none is started, or the repository is refused.

use std::{fs, path::Path};

use super::{Attack, Caller, Canary, all_calls, attack, attack_at_once, set, with_remote};
use crate::{
    git::{git, refused, try_git},
    harness::Skep,
};

#[tokio::test]
async fn no_setting_with_one_name_starts_a_program() {
    attack_at_once(&[
        Attack {
            name: "core.fsmonitor",
            set_up: &|path, canary| set(path, "core.fsmonitor", &canary.program),
            control: &[&["status"]],
        },
        Attack {
            name: "core.hooksPath",
            set_up: &|path, canary| {
                let hooks = Path::new(path).parent().unwrap().join("hooks");
                for hook in ["pre-commit", "post-checkout", "post-index-change", "reference-transaction"] {
                    canary.hook(&hooks, hook);
                }
                set(path, "core.hooksPath", hooks.to_str().unwrap());
            },
            control: &[&["commit", "-qam", "x"]],
        },
        Attack {
            name: "diff.external",
            set_up: &|path, canary| set(path, "diff.external", &canary.program),
            control: &[&["diff"]],
        },
        Attack {
            name: "core.editor",
            set_up: &|path, canary| set(path, "core.editor", &canary.program),
            control: &[&["commit", "-a"]],
        },
        Attack {
            name: "gpg.program",
            set_up: &|path, canary| {
                set(path, "gpg.program", &canary.program);
                set(path, "commit.gpgSign", "true");
            },
            control: &[&["commit", "-qam", "x"]],
        },
        Attack {
            name: "alias",
            set_up: &|path, canary| set(path, "alias.main", &format!("!{}", canary.program)),
            control: &[&["main"]],
        },
    ])
    .await;
}

#[tokio::test]
async fn no_pager_is_started() {
    // A pager needs a terminal, which `script` gives to the control.
    let skep = Skep::start().await;
    let path = with_remote(&skep);
    let canary = Canary::new(&skep);
    set(&path, "core.pager", &canary.program);
    set(&path, "pager.log", &canary.program);
    for caller in [Caller::Api, Caller::Unfenced] {
        all_calls(&skep, &path, caller).await;
        assert!(!canary.has_run(), "{caller:?}");
    }
    let mut control = std::process::Command::new("script");
    control.args(["-qec", "git log", "/dev/null"]).current_dir(&path).env("TERM", "xterm");
    if let Ok(output) = control.output() {
        assert!(canary.has_run(), "{output:?}");
    }
}

#[tokio::test]
async fn a_submodule_starts_nothing_either() {
    attack(
        "submodule",
        |path, canary| {
            let inner = format!("{path}/inner");
            git(
                path,
                &[
                    "-c",
                    "protocol.file.allow=always",
                    "submodule",
                    "--quiet",
                    "add",
                    "../remote.git",
                    "inner",
                ],
            );
            git(path, &["commit", "-qm", "Inner"]);
            set(&inner, "core.fsmonitor", &canary.program);
            set(&inner, "filter.x.clean", &canary.program);
            fs::write(format!("{inner}/.gitattributes"), "* filter=x\n").unwrap();
            fs::write(format!("{inner}/file"), "changed\n").unwrap();
            set(path, "status.submoduleSummary", "true");
            set(path, "diff.ignoreSubmodules", "none");
        },
        &[&["status"]],
    )
    .await;
}

/// Settings that cannot be overridden are refused by name.
#[tokio::test]
async fn settings_that_cannot_be_overridden_are_refused() {
    let skep = Skep::start().await;
    let path = with_remote(&skep);
    let canary = Canary::new(&skep);
    let other = skep.at("settings");
    fs::write(&other, format!("[core]\n\tfsmonitor = {}\n", canary.program)).unwrap();
    set(&path, "include.path", &other);
    for (verb, _) in [("status", 0), ("diff", 0), ("log", 0), ("branch", 0)] {
        let response = skep.get(&format!("/api/git/{verb}?path={path}")).await;
        let message = refused(response, 409, "hostile_repository").await;
        assert!(message.contains("include.path"), "{message}");
    }
    assert!(!canary.has_run());
    try_git(&path, &["status"]);
    assert!(canary.has_run(), "the control");
    git(&path, &["config", "--unset", "include.path"]);
    // Git supports the section `hook` since version 2.54; an older git cannot serve as control.
    for key in ["remote.origin.vcs", "includeIf.onbranch:main.path", "hook.canary.command", "hook.x.event"] {
        set(&path, key, "canary");
        let message =
            refused(skep.get(&format!("/api/git/status?path={path}")).await, 409, "hostile_repository").await;
        assert!(message.to_lowercase().contains(&key.to_lowercase()), "{message}");
        git(&path, &["config", "--unset", key]);
    }
}
