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

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use skep_api::{CallContext, git::GitReach};
use skep_workspace::{Place, run_by_name};

use super::{git, repository, try_git};
use crate::harness::{Options, Skep, refused as refusal};

/// The address of the only remotes that git may connect to.
const LOOPBACK: &str = "127.0.0.1";

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

/// Who calls the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// The API, whose git is in a fence.
    Api,
    /// A place without a fence: only overridden and refused settings keep git from starting programs.
    Unfenced,
}

/// The operations on one repository that read: the route with its query, and the parameters of the operation.
fn reads() -> Vec<(&'static str, Value)> {
    vec![
        ("status?", json!({})),
        ("diff?", json!({})),
        ("diff?staged=true&", json!({"staged": true})),
        ("diff?from=HEAD&", json!({"from": "HEAD"})),
        ("log?", json!({})),
        ("log?file=file&", json!({"file": "file"})),
        ("branch?remote=true&", json!({"remote": true})),
        ("worktree?", json!({})),
    ]
}

/// The operations on one repository that write. Each caller makes branches and a work tree of its own.
fn writes(skep: &Skep, caller: Caller) -> Vec<(&'static str, Value)> {
    let [branch, made, tree] = ["attacked", "made", "tree"].map(|name| format!("{name}-{caller:?}"));
    vec![
        ("add", json!({})),
        ("commit", json!({"message": "x", "allow_empty": true})),
        ("checkout", json!({"ref": branch, "create": true})),
        ("commit", json!({"message": "y", "all": true, "allow_empty": true})),
        ("checkout", json!({"ref": "main"})),
        ("stash", json!({"action": "push"})),
        ("stash", json!({"action": "pop"})),
        ("reset", json!({"mode": "hard"})),
        ("branch", json!({"name": made})),
        ("worktree", json!({"worktree": skep.at(&tree)})),
        ("pull", json!({"strategy": "merge"})),
        ("pull", json!({"strategy": "rebase", "branch": "main"})),
        ("push", json!({"branch": "main", "force_with_lease": true})),
    ]
}

/// Whether an operation succeeded, or the code of its refusal.
type Outcome = Result<(), String>;

/// Calls all operations on one repository. Each may succeed or be refused.
async fn all_calls(skep: &Skep, path: &str, caller: Caller) -> Vec<(&'static str, Outcome)> {
    let mut seen = Vec::new();
    for (query, mut operation) in reads() {
        operation["path"] = json!(path);
        let name = match query.split('?').next() {
            Some("branch") => "git-branches",
            Some("worktree") => "git-worktrees",
            verb => &format!("git-{}", verb.unwrap_or_default()),
        };
        let outcome = match caller {
            Caller::Api => {
                by_request(skep.request(Method::GET, &format!("/api/git/{query}path={path}"))).await
            }
            Caller::Unfenced => unfenced(skep, name, operation).await,
        };
        seen.push((query, outcome));
    }
    for (verb, mut operation) in writes(skep, caller) {
        for name in ["file", "other"] {
            fs::write(format!("{path}/{name}"), format!("{verb} {} {name}\n", seen.len())).unwrap();
        }
        operation["path"] = json!(path);
        let name = match verb {
            "branch" => "git-change-branch",
            "worktree" => "git-change-worktree",
            verb => &format!("git-{verb}"),
        };
        let outcome = match caller {
            Caller::Api => {
                by_request(skep.request(Method::POST, &format!("/api/git/{verb}")).json(&operation)).await
            }
            Caller::Unfenced => unfenced(skep, name, operation).await,
        };
        seen.push((verb, outcome));
    }
    seen
}

async fn by_request(request: RequestBuilder) -> Outcome {
    let answer = request.send().await.unwrap();
    if answer.status().is_success() { Ok(()) } else { Err(refusal(answer).await.code) }
}

async fn unfenced(skep: &Skep, name: &str, operation: Value) -> Outcome {
    let root = Path::new(&skep.account.roots[0]);
    let env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
    let place = Place::new(root, root, env, PathBuf::new()).without_groups();
    let reach = GitReach { allow: vec![LOOPBACK.to_owned()], ..GitReach::default() };
    let context = CallContext { reach, ..CallContext::default() };
    let call = json!({"context": context, "operation": operation});
    let answer = run_by_name(name, call.to_string().as_bytes(), &place).await;
    answer.map(drop).map_err(|error| error.code().as_str().to_owned())
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
    let options = Options { git_allow: vec![LOOPBACK.to_owned()], ..Options::default() };
    let skep = Skep::start_with(options).await;
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
    let mut outcomes = Vec::new();
    for caller in [Caller::Api, Caller::Unfenced] {
        let seen = all_calls(&skep, &path, caller).await;
        for (Attack { name, .. }, canary) in with_canaries() {
            assert!(!canary.has_run(), "{name}: a program was started by {caller:?}");
            assert!(seen[0].1.is_ok(), "{name}: it can still be read by {caller:?}: {seen:?}");
        }
        assert!(seen.iter().all(|(_, outcome)| *outcome != Err("internal".to_owned())), "{seen:?}");
        outcomes.push(seen);
    }
    assert_eq!(outcomes[0], outcomes[1], "both callers get as far");
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
