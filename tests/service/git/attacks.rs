//! Repositories whose settings start programs. In the control of each attack, plain git does start the program.

mod drivers;
mod hooks;
mod options;
mod remotes;
mod settings;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{git, repository, send, try_git};
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
