//! Filters that the operator configured, such as git-lfs, and remotes over https.

use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};

use axum::http::StatusCode;
use landlock::{AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use skep_workspace::git::{GitFilter, GitGrants};

use super::{
    commit, get, git,
    host::{Host, TOKEN},
    post, refused,
    remotes::{send_and_set, serve_copy},
    repository, send, try_git,
};
use crate::harness::{Options, Skep};

fn filter(name: &str, clean: &str, smudge: &str, process: &str) -> GitFilter {
    let filter =
        json!({"name": name, "clean": clean, "smudge": smudge, "process": process, "required": true});
    serde_json::from_value(filter).unwrap()
}

/// The filter settings of git-lfs.
fn large_files() -> GitFilter {
    filter("lfs", "git-lfs clean -- %f", "git-lfs smudge -- %f", "git-lfs filter-process")
}

fn options(filter: GitFilter) -> Options {
    Options { git: GitGrants { filters: vec![filter], ca_file: None }, ..Options::default() }
}

#[tokio::test]
async fn a_filter_that_the_operator_named_changes_contents_on_their_way() {
    let skep = Skep::start_with(options(filter("case", "tr A-Z a-z", "tr a-z A-Z", ""))).await;
    let path = repository(&skep, "project");
    fs::write(format!("{path}/.gitattributes"), "*.txt filter=case\n*.bin filter=other\n").unwrap();
    fs::write(format!("{path}/a.txt"), "SHOUTED\n").unwrap();
    fs::write(format!("{path}/a.bin"), "As It Is\n").unwrap();
    // Settings of the repository for the operator's filter and for other filters start nothing.
    let trace = skep.at("trace");
    let canary = format!("touch '{trace}'; cat");
    git(&path, &["config", "filter.case.process", &canary]);
    let response = send(&skep, "add", json!({"path": path})).await;
    refused(response, 409, "hostile_repository").await;
    git(&path, &["config", "--unset", "filter.case.process"]);
    for key in ["filter.case.clean", "filter.case.smudge", "filter.other.clean", "filter.other.process"] {
        git(&path, &["config", key, &canary]);
    }
    post(&skep, "add", json!({"path": path})).await;
    post(&skep, "commit", json!({"path": path, "message": "Filtered"})).await;
    assert_eq!(git(&path, &["cat-file", "blob", "HEAD:a.txt"]), "shouted\n");
    assert_eq!(git(&path, &["cat-file", "blob", "HEAD:a.bin"]), "As It Is\n");
    let clean = get(&skep, "status", &format!("path={path}")).await;
    assert_eq!(clean["clean"], true, "{clean}");
    fs::remove_file(format!("{path}/a.txt")).unwrap();
    post(&skep, "reset", json!({"path": path, "mode": "hard"})).await;
    assert_eq!(fs::read_to_string(format!("{path}/a.txt")).unwrap(), "SHOUTED\n");
    assert!(!Path::new(&trace).exists());
    // The control: plain git follows the settings of the repository.
    fs::write(format!("{path}/a.txt"), "AGAIN\n").unwrap();
    try_git(&path, &["add", "."]);
    assert!(Path::new(&trace).exists());
}

#[tokio::test]
async fn a_filter_that_is_not_configured_does_not_run() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    git(&path, &["config", "filter.case.clean", "tr A-Z a-z"]);
    fs::write(format!("{path}/.gitattributes"), "*.txt filter=case\n").unwrap();
    fs::write(format!("{path}/a.txt"), "SHOUTED\n").unwrap();
    post(&skep, "add", json!({"path": path})).await;
    assert_eq!(git(&path, &["cat-file", "blob", ":a.txt"]), "SHOUTED\n");
}

/// Starts a server that may reach this host, trusts its certificate, and uses git-lfs.
async fn start_for_host(host: &Host, authorities: std::path::PathBuf) -> Skep {
    start_with_filters(host, authorities, vec![large_files()]).await
}

async fn start_with_filters(host: &Host, authorities: std::path::PathBuf, filters: Vec<GitFilter>) -> Skep {
    let git = GitGrants { filters, ca_file: Some(authorities) };
    let skep =
        Skep::start_with(Options { git_allow: vec!["127.0.0.1".to_owned()], git, ..Options::default() })
            .await;
    let source = repository(&skep, "source");
    host.keep(&source);
    skep
}

#[tokio::test]
async fn a_remote_over_https_is_cloned_pushed_to_and_pulled_from_with_its_token() {
    // Without filters, only programs of git and of skep may start, and no shell.
    for filters in [vec![], vec![large_files()]] {
        cloned_pushed_to_and_pulled_from(filters).await;
    }
}

async fn cloned_pushed_to_and_pulled_from(filters: Vec<GitFilter>) {
    let (host, authorities) = Host::start().await;
    let skep = start_with_filters(&host, authorities, filters).await;
    let (one, two) = (skep.at("one"), skep.at("two"));
    let clone = |path: &str| json!({"url": host.url(), "path": path});
    // Without a token, the host refuses, and git does not prompt for one.
    let message = refused(send(&skep, "clone", clone(&one)).await, 409, "remote_failed").await;
    assert!(message.contains("store a credential for its host"), "{message}");
    post(&skep, "credentials", json!({"host": host.address.to_string(), "token": TOKEN})).await;
    post(&skep, "clone", clone(&one)).await;
    post(&skep, "clone", json!({"url": host.url(), "path": two, "depth": 1})).await;
    let made = commit(&skep, &one, "two\n", "Second").await;
    assert_eq!(post(&skep, "push", json!({"path": one})).await["to"], made["commit"]);
    assert_eq!(post(&skep, "pull", json!({"path": two})).await["to"], made["commit"]);
    let settings = fs::read_to_string(format!("{one}/.git/config")).unwrap();
    assert!(!settings.contains(TOKEN), "{settings}");
}

#[tokio::test]
async fn a_remote_over_http_is_reached_without_the_proxy_of_git_lfs() {
    let git_allow = vec!["127.0.0.1".to_owned()];
    let skep = Skep::start_with(Options { git_allow, ..options(large_files()) }).await;
    let (_projects, server) = serve_copy(&repository(&skep, "source")).await;
    let path = skep.at("clone");
    let url = format!("http://127.0.0.1:{}/x.git", server.port);
    post(&skep, "clone", json!({"url": url, "path": path})).await;
    let made = commit(&skep, &path, "two\n", "Second").await;
    assert_eq!(post(&skep, "push", json!({"path": path})).await["to"], made["commit"]);
}

#[tokio::test]
async fn a_host_without_a_trusted_certificate_gets_no_token() {
    let (host, _) = Host::start().await;
    let (_other, authorities) = Host::start().await;
    let skep = start_for_host(&host, authorities).await;
    post(&skep, "credentials", json!({"host": host.address.to_string(), "token": TOKEN})).await;
    let clone = json!({"url": host.url(), "path": skep.at("one")});
    let message = refused(send(&skep, "clone", clone).await, 409, "remote_failed").await;
    assert!(message.contains("certificate"), "{message}");
    assert_eq!(host.large_files.unauthorized.load(Ordering::Relaxed), 0, "it received no request");
}

/// Writes a large file of this content, and commits it.
async fn commit_large(skep: &Skep, path: &str, content: &str) -> Value {
    fs::write(format!("{path}/.gitattributes"), "*.bin filter=lfs diff=lfs merge=lfs -text\n").unwrap();
    fs::write(format!("{path}/large.bin"), content).unwrap();
    post(skep, "add", json!({"path": path})).await;
    post(skep, "commit", json!({"path": path, "message": content.trim()})).await
}

fn large(path: &str) -> String {
    fs::read_to_string(format!("{path}/large.bin")).unwrap()
}

#[tokio::test]
async fn large_files_go_where_their_commits_go() {
    let (host, authorities) = Host::start().await;
    let skep = start_for_host(&host, authorities).await;
    post(&skep, "credentials", json!({"host": host.address.to_string(), "token": TOKEN})).await;
    let (one, two) = (skep.at("one"), skep.at("two"));
    post(&skep, "clone", json!({"url": host.url(), "path": one})).await;
    commit_large(&skep, &one, "first\n").await;
    let kept = git(&one, &["cat-file", "blob", "HEAD:large.bin"]);
    assert!(kept.starts_with("version https://git-lfs.github.com/spec/v1"), "{kept}");
    post(&skep, "push", json!({"path": one})).await;
    assert_eq!(host.large_files.objects.lock().unwrap().values().cloned().collect::<Vec<_>>(), ["first\n"]);
    post(&skep, "clone", json!({"url": host.url(), "path": two})).await;
    assert_eq!(large(&two), "first\n");
    commit_large(&skep, &one, "second\n").await;
    post(&skep, "checkout", json!({"path": one, "ref": "topic", "create": true})).await;
    commit_large(&skep, &one, "third\n").await;
    post(&skep, "push", json!({"path": one, "branch": "main"})).await;
    post(&skep, "push", json!({"path": one, "branch": "topic"})).await;
    post(&skep, "pull", json!({"path": two})).await;
    assert_eq!(large(&two), "second\n");
    assert_eq!(get(&skep, "status", &format!("path={two}")).await["clean"], true);
    // The large files of another branch are fetched when it is checked out.
    git(&two, &["fetch", "-q", &host.projects.path().join("x.git").display().to_string(), "topic:topic"]);
    post(&skep, "checkout", json!({"path": two, "ref": "topic"})).await;
    assert_eq!(large(&two), "third\n");
    host.large_files.objects.lock().unwrap().clear();
    fs::remove_dir_all(format!("{two}/.git/lfs")).unwrap();
    let message =
        refused(send(&skep, "checkout", json!({"path": two, "ref": "main"})).await, 409, "remote_failed")
            .await;
    assert!(message.contains("not kept here"), "the message of the host: {message}");
    assert_eq!(large(&two), "third\n", "the work tree is unchanged");
}

/// Large files of a remote on this machine are copied from its repository.
#[tokio::test]
async fn large_files_of_a_local_remote_are_cloned_pushed_and_pulled() {
    let skep = Skep::start_with(options(large_files())).await;
    let source = repository(&skep, "source");
    commit_large(&skep, &source, "first\n").await;
    let (remote, one, two) = (skep.at("remote.git"), skep.at("one"), skep.at("two"));
    git(&source, &["clone", "-q", "--bare", &source, &remote]);
    post(&skep, "remote", json!({"path": source, "name": "origin", "url": remote})).await;
    post(&skep, "push", json!({"path": source, "branch": "main"})).await;
    for path in [&one, &two] {
        post(&skep, "clone", json!({"url": remote, "path": path})).await;
        assert_eq!(large(path), "first\n");
    }
    commit_large(&skep, &one, "second\n").await;
    post(&skep, "push", json!({"path": one})).await;
    post(&skep, "pull", json!({"path": two})).await;
    assert_eq!(large(&two), "second\n");
    assert_eq!(get(&skep, "status", &format!("path={two}")).await["clean"], true);
}

#[tokio::test]
async fn stored_large_files_are_checked_out_without_a_connection() {
    let (host, authorities) = Host::start().await;
    let skep = start_for_host(&host, authorities).await;
    post(&skep, "credentials", json!({"host": host.address.to_string(), "token": TOKEN})).await;
    let path = skep.at("project");
    post(&skep, "clone", json!({"url": host.url(), "path": path})).await;
    commit_large(&skep, &path, "first\n").await;
    post(&skep, "checkout", json!({"path": path, "ref": "topic", "create": true})).await;
    commit_large(&skep, &path, "second\n").await;
    for (branch, content) in [("main", "first\n"), ("topic", "second\n")] {
        post(&skep, "checkout", json!({"path": path, "ref": branch})).await;
        assert_eq!(large(&path), content);
    }
    assert_eq!(host.large_files.requests.load(Ordering::Relaxed), 0);
    let forbidden = "http://forbidden.example/x.git";
    git(&path, &["remote", "set-url", "origin", forbidden]);
    // A missing one is an error of the remote, unless the checkout does not need it.
    fs::remove_dir_all(format!("{path}/.git/lfs")).unwrap();
    git(&path, &["branch", "same", "topic"]);
    post(&skep, "checkout", json!({"path": path, "ref": "same"})).await;
    let message =
        refused(send(&skep, "checkout", json!({"path": path, "ref": "main"})).await, 403, "remote_forbidden")
            .await;
    assert!(message.contains("forbidden.example"), "{message}");
    assert_eq!(large(&path), "second\n", "the work tree is unchanged");
    // Here git finds that it is missing.
    let _ = fs::remove_dir_all(format!("{path}/.git/lfs"));
    fs::remove_file(format!("{path}/large.bin")).unwrap();
    let reset = send(&skep, "reset", json!({"path": path, "mode": "hard"})).await;
    refused(reset, 403, "remote_forbidden").await;
    git(&path, &["remote", "remove", "origin"]);
    let reset = send(&skep, "reset", json!({"path": path, "mode": "hard"})).await;
    let message = refused(reset, 409, "git_refused").await;
    assert!(message.contains("large.bin"), "{message}");
}

#[tokio::test]
async fn a_setting_that_is_made_while_a_call_waits_has_no_effect_on_large_files() {
    let (host, authorities) = Host::start().await;
    let skep = start_for_host(&host, authorities).await;
    post(&skep, "credentials", json!({"host": host.address.to_string(), "token": TOKEN})).await;
    let (one, two) = (skep.at("one"), skep.at("two"));
    for path in [&one, &two] {
        post(&skep, "clone", json!({"url": host.url(), "path": path})).await;
    }
    commit_large(&skep, &one, "first\n").await;
    let header = format!("http.https://{}/.extraHeader", host.address);
    for (verb, path) in [("push", &one), ("pull", &two)] {
        let called = send_and_set(&skep, verb, json!({"path": path}), &header, "x-attack: 1").await;
        assert_eq!(called.status(), StatusCode::OK, "{verb}");
        assert_eq!(large(path), "first\n");
        assert_eq!(host.large_files.attacked.load(Ordering::Relaxed), 0, "{verb}");
    }
    assert_eq!(host.large_files.requests.load(Ordering::Relaxed), 2);
    // The control: git-lfs obeys the setting.
    fs::remove_dir_all(format!("{two}/.git/lfs")).unwrap();
    let mut control = Command::new("git");
    control.args(["lfs", "fetch"]).current_dir(&two).env("GIT_SSL_NO_VERIFY", "1").stdin(Stdio::null());
    control.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ASKPASS", "false");
    // The host of the test runs on this thread.
    tokio::task::spawn_blocking(move || control.output()).await.unwrap().unwrap();
    assert!(host.large_files.attacked.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn a_filter_gets_no_means_to_ask_for_the_token() {
    let (host, authorities) = Host::start().await;
    // A filter runs in the top folder of the work tree.
    let smudge = "env >> ../trace; cat";
    let skep =
        start_with_filters(&host, authorities, vec![filter("show", "cat", smudge, ""), large_files()]).await;
    post(&skep, "credentials", json!({"host": host.address.to_string(), "token": TOKEN})).await;
    let path = skep.at("project");
    post(&skep, "clone", json!({"url": host.url(), "path": path})).await;
    fs::write(format!("{path}/.gitattributes"), "*.txt filter=show\n").unwrap();
    fs::write(format!("{path}/a.txt"), "shown\n").unwrap();
    post(&skep, "add", json!({"path": path})).await;
    post(&skep, "commit", json!({"path": path, "message": "Shown"})).await;
    post(&skep, "push", json!({"path": path})).await;
    post(&skep, "clone", json!({"url": host.url(), "path": skep.at("clone")})).await;
    fs::remove_file(format!("{path}/a.txt")).unwrap();
    post(&skep, "reset", json!({"path": path, "mode": "hard"})).await;
    let environment = fs::read_to_string(skep.at("trace")).unwrap();
    assert!(environment.matches("GIT_ASKPASS=\n").count() >= 2, "{environment}");
    assert!(!environment.contains("SKEP_GIT_CALLBACK"), "{environment}");
}

/// Whether this kernel can restrict the ports of programs (Landlock ABI 4).
fn can_restrict_ports() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessNet::ConnectTcp).is_ok()
}

#[tokio::test]
async fn a_repository_does_not_send_large_files_to_private_addresses() {
    let (host, _) = Host::start().await;
    let skep = Skep::start_with(options(large_files())).await;
    let source = repository(&skep, "source");
    let lead_to = |path: &str| {
        let url = format!("[lfs]\n\turl = https://{}/x.git/info/lfs\n", host.address);
        fs::write(format!("{path}/.lfsconfig"), url).unwrap();
    };
    lead_to(&source);
    commit_large(&skep, &source, "first\n").await;
    let remote = skep.at("remote.git");
    git(&source, &["clone", "-q", "--bare", &source, &remote]);
    git(&source, &["remote", "add", "origin", &remote]);
    fs::remove_dir_all(format!("{source}/.git/lfs")).unwrap();
    for (verb, body) in [
        ("clone", json!({"url": remote, "path": skep.at("one")})),
        ("reset", json!({"path": source, "mode": "hard"})),
        ("stash", json!({"path": source, "action": "push"})),
        ("worktree", json!({"path": source, "worktree": skep.at("tree")})),
        ("push", json!({"path": source, "branch": "main"})),
    ] {
        let _ = fs::remove_file(format!("{source}/large.bin"));
        send(&skep, verb, body).await;
        let requests = host.large_files.unauthorized.load(Ordering::Relaxed);
        assert!(requests == 0 || !can_restrict_ports(), "{verb}: the host received {requests} requests");
    }
    // The control: plain git-lfs sends a request there. It would then prompt for a password, so its end is not awaited.
    let mut control = Command::new("git-lfs");
    let control = control.args(["smudge", "--", "large.bin"]).current_dir(&source).process_group(0);
    control.env("GIT_TERMINAL_PROMPT", "0").env("GIT_SSL_NO_VERIFY", "1").stdin(Stdio::piped());
    let mut control = control.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pointer = git(&source, &["cat-file", "blob", "HEAD:large.bin"]);
    control.stdin.take().unwrap().write_all(pointer.as_bytes()).unwrap();
    let request_arrived = async {
        while host.large_files.unauthorized.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await
        }
    };
    let request_arrived = tokio::time::timeout(Duration::from_secs(30), request_arrived).await;
    rustix::process::kill_process_group(Pid::from_child(&control), Signal::KILL).unwrap();
    control.wait().unwrap();
    request_arrived.expect("the control");
}

#[tokio::test]
async fn settings_that_start_programs_for_large_files_are_refused() {
    let skep = Skep::start_with(options(large_files())).await;
    let path = repository(&skep, "project");
    for key in
        ["lfs.customtransfer.x.path", "lfs.standalonetransferagent", "lfs.extension.x.clean", "lfs.storage"]
    {
        git(&path, &["config", key, "x"]);
        let response = skep.get(&format!("/api/git/status?path={path}")).await;
        let message = refused(response, 409, "hostile_repository").await;
        assert!(message.contains(key), "{message}");
        git(&path, &["config", "--unset", key]);
    }
    git(&path, &["config", "lfs.url", "https://git.example.com/x"]);
    get(&skep, "status", &format!("path={path}")).await;
    // Git-lfs reads these as settings of other names.
    git(&path, &["config", "branch.a=b.remote", "origin"]);
    get(&skep, "status", &format!("path={path}")).await;
    for (key, value) in [("lfs.fetchexclude", "x\nlfs.storage=/y"), ("lfs.storage=/y?.locksverify", "true")] {
        git(&path, &["config", key, value]);
        let environment = git(&path, &["lfs", "env"]);
        assert!(environment.contains("LocalMediaDir=/y"), "the control: {environment}");
        let response = skep.get(&format!("/api/git/status?path={path}")).await;
        refused(response, 409, "hostile_repository").await;
        git(&path, &["config", "--unset", key]);
    }
}
