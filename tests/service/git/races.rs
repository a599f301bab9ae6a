//! Settings of a repository that change while git runs start nothing, even those that cannot be overridden.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use serde_json::{Value, json};
use skep_api::CallContext;
use skep_workspace::{Place, run_by_name};

use super::{git, repository, send};
use crate::harness::Skep;

/// Number of calls while the settings change. Without the fence, about every tenth would start a program.
fn rounds() -> usize {
    std::env::var("SOAK_GIT_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap())
}

/// The most calls of the control. It ends with the first program that is started, which a loaded machine may delay.
const CONTROL_ROUNDS: usize = 500;

/// Repositories that are used at the same time.
const REPOSITORIES: usize = 2;

/// A repository whose settings alternate between hostile and harmless, until this is dropped.
struct AlternatingRepository {
    path: String,
    trace: PathBuf,
    over: Arc<AtomicBool>,
    rewriting: Option<JoinHandle<()>>,
}

impl AlternatingRepository {
    fn new(skep: &Skep, name: &str) -> Self {
        let path = repository(skep, name);
        git(&path, &["config", "user.name", "Ada"]);
        fs::write(format!("{path}/.git/info/attributes"), "* filter=x diff=x merge=x\n").unwrap();
        let (canary, trace) =
            (skep.at(&format!("{name}-canary")), PathBuf::from(skep.at(&format!("{name}-trace"))));
        fs::write(&canary, format!("#!/bin/sh\necho \"$0 $*\" >> '{}'\ncat\n", trace.display())).unwrap();
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o755)).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (folder, stop) = (PathBuf::from(&path).join(".git"), Arc::clone(&over));
        let rewriting = std::thread::spawn(move || rewrite(&folder, &canary, &stop));
        Self { path, trace, over, rewriting: Some(rewriting) }
    }

    /// How often the canary was started.
    fn starts(&self) -> usize {
        fs::read_to_string(&self.trace).unwrap_or_default().lines().count()
    }

    /// The call of a round: its verb and its body.
    fn call(&self, round: usize) -> (&'static str, Value) {
        for name in ["file", "other"] {
            fs::write(format!("{}/{name}", self.path), format!("{round}\n")).unwrap();
        }
        match round % 3 {
            0 => ("reset", json!({"path": self.path, "mode": "hard"})),
            1 => ("stash", json!({"path": self.path, "action": "push"})),
            _ => ("add", json!({"path": self.path})),
        }
    }
}

impl Drop for AlternatingRepository {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.rewriting.take().unwrap().join();
    }
}

/// Replaces the settings by rename, as a write of `PUT /api/files` does.
fn rewrite(folder: &Path, canary: &str, stop: &AtomicBool) {
    let (settings, next) = (folder.join("config"), folder.join("config.next"));
    let plain = fs::read_to_string(&settings).unwrap();
    let drivers = format!(
        "[diff \"x\"]\n\tcommand = {canary}\n\ttextconv = {canary}\n[merge \"x\"]\n\tdriver = {canary}\n"
    );
    let filters = [
        format!("\tclean = {canary}\n\tsmudge = {canary}\n"),
        format!("\tprocess = {canary}\n"),
        // One that needs a shell.
        format!("\tclean = {canary} %f\n\tsmudge = {canary} %f\n"),
    ];
    let hostile = filters.map(|filter| {
        format!("{plain}[core]\n\tfsmonitor = {canary}\n[diff]\n\texternal = {canary}\n{drivers}[filter \"x\"]\n{filter}")
    });
    for text in hostile.iter().flat_map(|hostile| [hostile, &plain]).cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        fs::write(&next, text).unwrap();
        fs::rename(&next, &settings).unwrap();
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn settings_that_change_while_git_works_start_nothing() {
    let skep = Arc::new(Skep::start().await);
    let working = (0..REPOSITORIES).map(|number| {
        let skep = Arc::clone(&skep);
        tokio::spawn(async move {
            let turncoat = AlternatingRepository::new(&skep, &format!("project-{number}"));
            let mut done = 0;
            for round in 0..rounds() / REPOSITORIES {
                let (verb, body) = turncoat.call(round);
                done += usize::from(send(&skep, verb, body).await.status().is_success());
            }
            (turncoat.starts(), done)
        })
    });
    for working in working.collect::<Vec<_>>() {
        let (starts, done) = working.await.unwrap();
        assert_eq!(starts, 0, "programs were started");
        assert!(done > 0, "no call got as far as git");
    }
    // The control: the same calls without a fence.
    let turncoat = AlternatingRepository::new(&skep, "control");
    let path = PathBuf::from(&turncoat.path);
    let env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
    let place = Place::new(&path, &path, env, PathBuf::new()).without_groups();
    for round in 0..CONTROL_ROUNDS {
        let (verb, operation) = turncoat.call(round);
        let call = json!({"context": CallContext::default(), "operation": operation});
        let _ = run_by_name(&format!("git-{verb}"), call.to_string().as_bytes(), &place).await;
        if turncoat.starts() > 0 {
            return;
        }
    }
    panic!("the control started nothing, so the race is none");
}
