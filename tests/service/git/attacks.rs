//! Repositories whose settings start programs. In the control of each attack, plain git does start the program.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use reqwest::Method;
use serde_json::{Value, json};

use super::{git, refused, repository, send, try_git};
use crate::harness::Skep;

/// A program that leaves a marker file where it runs.
struct Canary {
    /// Copies its input to its output, as filters do.
    program: String,
    /// Reads nothing, so a process that writes to it would block.
    deaf: String,
    trace: PathBuf,
}

impl Canary {
    fn new(skep: &Skep) -> Self {
        Self::numbered(skep, 0)
    }

    /// One of several, each with a marker file of its own.
    fn numbered(skep: &Skep, number: usize) -> Self {
        let [program, deaf, trace] =
            ["canary", "deaf", "trace"].map(|name| skep.at(&format!("{name}-{number}")));
        let trace = PathBuf::from(trace);
        for (path, end) in [(&program, "cat"), (&deaf, "exit 1")] {
            let script = format!("#!/bin/sh\necho \"$0 $*\" >> '{}'\n{end}\n", trace.display());
            fs::write(path, script).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { program, deaf, trace }
    }

    fn has_run(&self) -> bool {
        let sang = self.trace.exists();
        let _ = fs::remove_file(&self.trace);
        sang
    }

    fn hook(&self, folder: &Path, name: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::copy(&self.program, folder.join(name)).unwrap();
    }
}

/// Calls all operations on one repository. Each may succeed or be refused.
async fn all_calls(skep: &Skep, path: &str) -> Vec<(String, u16)> {
    let mut seen = Vec::new();
    let reads = [
        "status?",
        "diff?",
        "diff?staged=true&",
        "diff?from=HEAD&",
        "log?",
        "log?file=file&",
        "branch?remote=true&",
        "worktree?",
    ];
    let writes = [
        ("add", json!({})),
        ("commit", json!({"message": "x", "allow_empty": true})),
        ("checkout", json!({"ref": "attacked", "create": true})),
        ("commit", json!({"message": "y", "all": true, "allow_empty": true})),
        ("checkout", json!({"ref": "main"})),
        ("stash", json!({"action": "push"})),
        ("stash", json!({"action": "pop"})),
        ("reset", json!({"mode": "hard"})),
        ("branch", json!({"name": "made"})),
        ("worktree", json!({"worktree": skep.at("attacked-tree")})),
        ("pull", json!({"strategy": "merge"})),
        ("pull", json!({"strategy": "rebase", "branch": "main"})),
        ("push", json!({"branch": "main", "force_with_lease": true})),
    ];
    for read in reads {
        let response = skep.get(&format!("/api/git/{read}path={path}")).await;
        seen.push((read.to_owned(), response.status().as_u16()));
    }
    for (verb, mut body) in writes {
        for name in ["file", "other"] {
            fs::write(format!("{path}/{name}"), format!("{verb} {} {name}\n", seen.len())).unwrap();
        }
        body["path"] = json!(path);
        let response = send(skep, verb, body).await;
        seen.push((verb.to_owned(), response.status().as_u16()));
    }
    assert!(seen.iter().all(|(_, status)| *status != 500), "{seen:?}");
    seen
}

/// A repository and its remote, which have diverged.
fn with_remote(skep: &Skep) -> String {
    let path = repository(skep, "project");
    let remote = skep.at("remote.git");
    git(&path, &["clone", "-q", "--bare", &path, &remote]);
    git(&path, &["remote", "add", "origin", &remote]);
    git(&path, &["push", "-qu", "origin", "main"]);
    let other = skep.at("elsewhere");
    git(&path, &["clone", "-q", &remote, &other]);
    fs::write(format!("{other}/file"), "theirs\n").unwrap();
    git(&other, &["commit", "-qam", "Theirs"]);
    git(&other, &["push", "-q", "origin", "main"]);
    path
}

/// What starts a program.
struct Attack<'a> {
    name: &'a str,
    set_up: &'a dyn Fn(&str, &Canary),
    /// The calls of plain git that start the program.
    control: &'a [&'a [&'a str]],
}

/// Tries an attack: no operation of the API starts the program, and plain git does.
async fn attack(name: &str, set_up: impl Fn(&str, &Canary), control: &[&[&str]]) {
    attack_at_once(&[Attack { name, set_up: &set_up, control }]).await;
}

/// Tries attacks on one repository, where none hinders another one.
async fn attack_at_once(attacks: &[Attack<'_>]) {
    let skep = Skep::start().await;
    let path = with_remote(&skep);
    let canaries: Vec<Canary> = (0..attacks.len()).map(|number| Canary::numbered(&skep, number)).collect();
    let with_canaries = || attacks.iter().zip(&canaries);
    for (attack, canary) in with_canaries() {
        (attack.set_up)(&path, canary);
    }
    // The set-up may have started the programs.
    for canary in &canaries {
        canary.has_run();
    }
    let seen = all_calls(&skep, &path).await;
    for (Attack { name, .. }, canary) in with_canaries() {
        assert!(!canary.has_run(), "{name}: a program was started");
        assert_eq!(seen[0].1, 200, "{name}: it can still be read: {seen:?}");
    }
    for (Attack { name, control, .. }, canary) in with_canaries() {
        for file in ["file", "other"] {
            fs::write(format!("{path}/{file}"), format!("the control of {name}\n")).unwrap();
        }
        // The controls before may have started it.
        canary.has_run();
        for arguments in *control {
            try_git(&path, arguments);
        }
        assert!(canary.has_run(), "{name}: the control started nothing, so the attack is none");
    }
}

fn set(path: &str, key: &str, value: &str) {
    git(path, &["config", key, value]);
}

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
    all_calls(&skep, &path).await;
    assert!(!canary.has_run());
    let mut control = std::process::Command::new("script");
    control.args(["-qec", "git log", "/dev/null"]).current_dir(&path).env("TERM", "xterm");
    if let Ok(output) = control.output() {
        assert!(canary.has_run(), "{output:?}");
    }
}

#[tokio::test]
async fn no_hook_is_run() {
    attack(
        "hooks",
        |path, canary| {
            for hook in [
                "pre-commit",
                "commit-msg",
                "post-commit",
                "post-checkout",
                "pre-push",
                "post-merge",
                "pre-rebase",
            ] {
                canary.hook(&Path::new(path).join(".git/hooks"), hook);
            }
        },
        &[&["commit", "-qam", "x"]],
    )
    .await;
    attack(
        "hooks of a local remote",
        |path, canary| {
            let remote = Path::new(path).parent().unwrap().join("remote.git");
            for hook in ["pre-receive", "update", "post-receive", "reference-transaction"] {
                canary.hook(&remote.join("hooks"), hook);
            }
        },
        &[&["push", "-f", "origin", "HEAD:refs/heads/control"]],
    )
    .await;
}

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

#[tokio::test]
async fn what_begins_with_a_dash_is_never_an_option() {
    let skep = Skep::start().await;
    let path = with_remote(&skep);
    let target = skep.at("written");
    for evil in ["--output=written", "-u", "--upload-pack=touch written", "--exec=touch written", "-"] {
        for query in
            [format!("log?ref={evil}"), format!("diff?from={evil}"), format!("diff?from=HEAD&to={evil}")]
        {
            let response = skep.get(&format!("/api/git/{query}&path={path}")).await;
            let message = refused(response, 400, "invalid_value").await;
            assert!(message.contains(evil), "{message}");
        }
        let bodies: Vec<(&str, Value)> = vec![
            ("checkout", json!({"path": path, "ref": evil})),
            ("checkout", json!({"path": path, "ref": evil, "create": true})),
            ("branch", json!({"path": path, "name": evil})),
            ("branch", json!({"path": path, "name": "x", "from": evil})),
            ("reset", json!({"path": path, "to": evil})),
            ("push", json!({"path": path, "remote": evil})),
            ("push", json!({"path": path, "branch": evil})),
            ("pull", json!({"path": path, "remote": evil})),
            ("pull", json!({"path": path, "branch": evil})),
            ("worktree", json!({"path": path, "worktree": skep.at("tree"), "ref": evil})),
            ("clone", json!({"path": skep.at("clone"), "url": path, "branch": evil})),
        ];
        for (verb, body) in bodies {
            refused(send(&skep, verb, body).await, 400, "invalid_value").await;
        }
        let url = json!({"path": skep.at("clone"), "url": evil});
        refused(send(&skep, "clone", url).await, 403, "remote_forbidden").await;
        // Names of files and folders may begin with a dash.
        fs::write(format!("{path}/{evil}"), "x").unwrap_or_default();
        let response = skep.get(&format!("/api/git/log?file={evil}&path={path}")).await;
        assert_eq!(response.status(), 200, "{evil}");
        assert_ne!(send(&skep, "add", json!({"path": path, "files": [evil]})).await.status(), 500);
    }
    let dashed = skep.at("-tree");
    assert_eq!(send(&skep, "init", json!({"path": dashed})).await.status(), 201);
    assert!(!Path::new(&target).exists() && !Path::new(&path).join("written").exists());
    let stash = json!({"path": path, "action": "push", "message": "--all"});
    assert_ne!(skep.request(Method::POST, "/api/git/stash").json(&stash).send().await.unwrap().status(), 500);
}
