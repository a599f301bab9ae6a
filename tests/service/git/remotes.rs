//! Remotes: paths below the roots, and others over HTTP.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, TryRecvError},
    },
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{commit, get, git, post, refused, repository, send};
use crate::harness::{Options, Skep, eventually};

/// A repository, a bare one, and two clones of that.
async fn two_clones(skep: &Skep) -> (String, String, String) {
    let path = repository(skep, "first");
    let remote = skep.at("remote.git");
    git(&path, &["clone", "-q", "--bare", &path, &remote]);
    let (one, two) = (skep.at("one"), skep.at("two"));
    for path in [&one, &two] {
        let cloned = post(skep, "clone", json!({"url": remote, "path": path})).await;
        assert_eq!(cloned["branch"], "main");
        assert!(cloned["head"].is_string());
    }
    (remote, one, two)
}

#[tokio::test]
async fn a_pushed_commit_is_pulled_by_another_clone() {
    let skep = Skep::start().await;
    let (remote, one, two) = two_clones(&skep).await;
    let first = get(&skep, "log", &format!("path={one}")).await["commits"][0]["id"].clone();
    let made = commit(&skep, &one, "one\ntwo\n", "Second").await;
    let status = get(&skep, "status", &format!("path={one}")).await;
    assert_eq!(
        (&status["upstream"], &status["ahead"], &status["behind"]),
        (&json!("origin/main"), &json!(1), &json!(0))
    );
    let pushed = post(&skep, "push", json!({"path": one})).await;
    assert_eq!(
        pushed,
        json!({"remote": "origin", "branch": "main", "from": first, "to": made["commit"], "created": false})
    );
    assert_eq!(post(&skep, "push", json!({"path": one})).await["from"], made["commit"]);
    let pulled = post(&skep, "pull", json!({"path": two})).await;
    assert_eq!(pulled, json!({"from": first, "to": made["commit"], "commits": 1, "files_changed": 1}));
    post(&skep, "checkout", json!({"path": one, "ref": "topic", "create": true})).await;
    let pushed = post(&skep, "push", json!({"path": one, "set_upstream": true})).await;
    assert_eq!((&pushed["created"], &pushed["from"]), (&json!(true), &json!(null)));
    assert_eq!(get(&skep, "status", &format!("path={one}")).await["upstream"], "origin/topic");
    let branches = get(&skep, "branch", &format!("path={one}&remote=true")).await;
    assert!(branches["branches"].as_array().unwrap().iter().any(|one| one["name"] == "origin/topic"));
    assert!(git(&remote, &["branch"]).contains("topic"));
    // The other clone has `main` checked out, and names the branch to pull.
    let topic = commit(&skep, &one, "three\n", "Third").await;
    post(&skep, "push", json!({"path": one})).await;
    let pulled = post(&skep, "pull", json!({"path": two, "remote": "origin", "branch": "topic"})).await;
    assert_eq!(
        pulled,
        json!({"from": made["commit"], "to": topic["commit"], "commits": 1, "files_changed": 1})
    );
}

#[tokio::test]
async fn a_push_and_a_pull_without_a_path_are_of_the_only_repository() {
    let skep = Skep::start().await;
    // The search for repositories does not go this deep.
    let first = repository(&skep, "deeper/first");
    let (remote, path) = (skep.at("deeper/remote.git"), skep.at("project"));
    git(&first, &["clone", "-q", "--bare", &first, &remote]);
    post(&skep, "clone", json!({"url": remote, "path": path})).await;
    let made = commit(&skep, &path, "two\n", "Second").await;
    assert_eq!(post(&skep, "push", json!({})).await["to"], made["commit"]);
    assert!(git(&remote, &["log", "--format=%s", "main"]).starts_with("Second\n"));
    let other = skep.at("deeper/other");
    git(&first, &["clone", "-q", &remote, &other]);
    git(&other, &["commit", "-q", "--allow-empty", "-m", "Third"]);
    git(&other, &["push", "-q"]);
    let pulled = post(&skep, "pull", json!({})).await;
    assert_eq!((&pulled["from"], &pulled["commits"]), (&made["commit"], &json!(1)));
    let another = repository(&skep, "another");
    for verb in ["push", "pull"] {
        let message = refused(send(&skep, verb, json!({})).await, 400, "invalid_value").await;
        assert!(message.contains(&path) && message.contains(&another), "{verb}: {message}");
    }
}

#[tokio::test]
async fn remotes_are_added_changed_listed_and_removed() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let hub = skep.at("hub.git");
    post(&skep, "init", json!({"path": hub, "bare": true})).await;
    let change = |more: Value| {
        let mut body = json!({"path": path, "name": "hub"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        send(&skep, "remote", body)
    };
    let list = async || get(&skep, "remote", &format!("path={path}")).await["remotes"].clone();
    assert_eq!(change(json!({"url": hub})).await.status(), StatusCode::OK);
    assert_eq!(list().await, json!([{"name": "hub", "url": hub, "push_url": null}]));
    let pushed = post(&skep, "push", json!({"path": path, "remote": "hub"})).await;
    assert_eq!((&pushed["remote"], &pushed["created"]), (&json!("hub"), &json!(true)));

    refused(change(json!({"url": hub})).await, 409, "already_exists").await;
    refused(change(json!({})).await, 400, "invalid_value").await;
    let unknown = change(json!({"name": "nobody", "remove": true})).await;
    refused(unknown, 404, "unknown_remote").await;
    let forbidden = change(json!({"name": "bad", "url": "ext::sh -c id"})).await;
    refused(forbidden, 403, "remote_forbidden").await;
    assert_eq!(change(json!({"url": "/nowhere", "replace": true})).await.status(), StatusCode::OK);
    assert_eq!(list().await, json!([{"name": "hub", "url": "/nowhere", "push_url": null}]));
    assert_eq!(change(json!({"remove": true})).await.status(), StatusCode::OK);
    assert_eq!(list().await, json!([]));
}

#[tokio::test]
async fn a_push_that_is_rejected_and_a_pull_that_conflicts_change_nothing() {
    let skep = Skep::start().await;
    let (remote, one, two) = two_clones(&skep).await;
    commit(&skep, &one, "theirs\n", "Theirs").await;
    post(&skep, "push", json!({"path": one})).await;
    let ours = commit(&skep, &two, "ours\n", "Ours").await;
    let message = refused(send(&skep, "push", json!({"path": two})).await, 409, "push_rejected").await;
    assert!(message.contains("rejected"), "{message}");
    fs::write(format!("{two}/untracked"), "mine").unwrap();
    for strategy in ["ff-only", "merge", "rebase"] {
        let pull = json!({"path": two, "strategy": strategy});
        let message = refused(send(&skep, "pull", pull).await, 409, "merge_conflict").await;
        // Git compares no files where it may not merge.
        assert!(strategy == "ff-only" || message.contains("Merge conflict in file"), "{strategy}: {message}");
        let status = get(&skep, "status", &format!("path={two}")).await;
        assert_eq!((&status["head"], &status["branch"]), (&ours["commit"], &json!("main")), "{strategy}");
        assert_eq!(status["untracked"], json!([{"path": "untracked"}]), "{strategy}");
        assert_eq!((&status["conflicted"], &status["modified"]), (&json!([]), &json!([])), "{strategy}");
        assert_eq!(fs::read_to_string(format!("{two}/file")).unwrap(), "ours\n");
        assert!(!std::path::Path::new(&format!("{two}/.git/MERGE_HEAD")).exists());
    }
    // The lease holds: the remote is in the state of the last pull.
    let forced = json!({"path": two, "force_with_lease": true});
    assert_eq!(post(&skep, "push", forced.clone()).await["to"], ours["commit"]);
    commit(&skep, &one, "theirs again\n", "Theirs").await;
    let stale = json!({"path": one, "force_with_lease": true});
    refused(send(&skep, "push", stale).await, 409, "push_rejected").await;
    // The message of a remote that refuses is passed on.
    git(&remote, &["config", "receive.denyNonFastForwards", "true"]);
    git(&two, &["commit", "-q", "--amend", "-m", "Amended"]);
    let message = refused(send(&skep, "push", forced).await, 409, "push_rejected").await;
    assert!(message.contains("denying non-fast-forward"), "{message}");
}

#[tokio::test]
async fn both_sides_are_joined_where_they_do_not_conflict() {
    for strategy in ["merge", "rebase"] {
        let skep = Skep::start().await;
        let (_, one, two) = two_clones(&skep).await;
        commit(&skep, &one, "theirs\n", "Theirs").await;
        post(&skep, "push", json!({"path": one})).await;
        fs::write(format!("{two}/other"), "ours\n").unwrap();
        post(&skep, "add", json!({"path": two})).await;
        let ada = json!({"name": "Ada", "email": "ada@example.com"});
        post(&skep, "commit", json!({"path": two, "message": "Ours", "author": ada})).await;
        refused(send(&skep, "pull", json!({"path": two})).await, 409, "merge_conflict").await;
        let pulled = post(&skep, "pull", json!({"path": two, "strategy": strategy})).await;
        assert_eq!(pulled["commits"], 2, "{strategy}: {pulled}");
        let log = get(&skep, "log", &format!("path={two}")).await;
        assert!(log["commits"].as_array().unwrap().iter().any(|one| one["author"]["name"] == "Ada"));
        assert_eq!(get(&skep, "status", &format!("path={two}")).await["clean"], true);
        post(&skep, "push", json!({"path": two})).await;
    }
}

#[tokio::test]
async fn an_invalid_remote_is_refused_by_name() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    refused(send(&skep, "push", json!({"path": path})).await, 404, "unknown_remote").await;
    refused(send(&skep, "pull", json!({"path": path, "remote": "no"})).await, 404, "unknown_remote").await;
    for url in
        ["ext::sh -c id", "fd::17", "git://git.example/x", "file:///etc", "https://user:secret@git.example/x"]
    {
        let body = json!({"url": url, "path": skep.at("clone")});
        let message = refused(send(&skep, "clone", body).await, 403, "remote_forbidden").await;
        assert!(!message.contains("secret"), "{message}");
        git(&path, &["config", "remote.origin.url", url]);
        refused(send(&skep, "pull", json!({"path": path, "branch": "main"})).await, 403, "remote_forbidden")
            .await;
    }
    for (key, value) in
        [("http.proxy", "http://127.0.0.1:1"), ("remote.origin.proxy", "x"), ("url.x.insteadOf", "https:")]
    {
        git(&path, &["config", "remote.origin.url", "https://git.example.com/x"]);
        git(&path, &["config", key, value]);
        let refusal = send(&skep, "pull", json!({"path": path, "branch": "main"})).await;
        refused(refusal, 409, "hostile_repository").await;
        git(&path, &["config", "--unset", key]);
    }
}

/// Every spelling of an address of this machine.
const LOOPBACK: &[&str] = &[
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "017700000001",
    "localhost",
    "localhost.",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "0.0.0.0",
    "0",
];

#[tokio::test]
async fn no_private_address_is_reached() {
    let server = GitServer::start(None).await;
    let skep = Skep::start().await;
    for host in LOOPBACK {
        let port = server.port;
        // Also at the usual ports, which are open at public hosts.
        for (scheme, port) in [("https", port), ("ssh", port), ("https", 443), ("ssh", 22)] {
            let url = format!("{scheme}://{host}:{port}/x");
            let body = json!({"url": url, "path": skep.at("clone")});
            let response = send(&skep, "clone", body).await;
            let status = response.status().as_u16();
            let code = response.headers()["skep-error"].to_str().unwrap().to_owned();
            let text = response.text().await.unwrap();
            // A spelling that the resolver does not accept is refused as well.
            let nowhere = code == "remote_failed" && (text.contains("502") || text.contains("not found"));
            assert!((status, code.as_str()) == (403, "remote_forbidden") || nowhere, "{url}: {code} {text}");
            let is_taken_by_every_resolver = ["127.0.0.1", "localhost", "[::1]"].contains(host);
            assert!(!is_taken_by_every_resolver || text.contains("--git-allow"), "{url}: {code} {text}");
        }
        let url = format!("http://{host}:{}/x", server.port);
        let body = json!({"url": url, "path": skep.at("clone")});
        refused(send(&skep, "clone", body).await, 403, "remote_forbidden").await;
    }
    assert_eq!(server.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_the_operator_allows_is_reached_and_no_redirect_leads_on() {
    let options = Options { git_allow: vec!["127.0.0.1".to_owned()], ..Options::default() };
    let skep = Skep::start_with(options).await;
    let path = repository(&skep, "source");
    let (projects, server) = serve_copy(&path).await;
    let url = format!("http://127.0.0.1:{}/x.git", server.port);
    let clone = skep.at("clone");
    let cloned = post(&skep, "clone", json!({"url": url, "path": clone, "depth": 1, "branch": "main"})).await;
    assert_eq!(cloned["branch"], "main");
    let made = commit(&skep, &clone, "two\n", "Second").await;
    assert_eq!(post(&skep, "push", json!({"path": clone})).await["to"], made["commit"]);
    assert!(git(projects.path().join("x.git"), &["log", "main"]).contains("Second"));
    assert_eq!(post(&skep, "pull", json!({"path": clone})).await["commits"], 0);
    // Another server redirects git to the first.
    let redirecting = GitServer::start(Some(ServedContent::Redirect(url))).await;
    let before = server.asked.load(Ordering::Relaxed);
    let body =
        json!({"url": format!("http://127.0.0.1:{}/x.git", redirecting.port), "path": skep.at("other")});
    refused(send(&skep, "clone", body).await, 409, "remote_failed").await;
    assert!(redirecting.asked.load(Ordering::Relaxed) > 0);
    assert_eq!(server.asked.load(Ordering::Relaxed), before, "nobody followed");
    assert!(!std::path::Path::new(&skep.at("other")).exists(), "nothing is left of it");
}

/// A server with a bare copy of this repository as `x.git`, and the folder of the copy.
pub(super) async fn serve_copy(path: &str) -> (tempfile::TempDir, GitServer) {
    let projects = tempfile::tempdir().unwrap();
    let bare = projects.path().join("x.git");
    git(path, &["clone", "-q", "--bare", path, bare.to_str().unwrap()]);
    git(&bare, &["config", "http.receivepack", "true"]);
    let served = ServedContent::Projects(projects.path().display().to_string());
    (projects, GitServer::start(Some(served)).await)
}

#[tokio::test]
async fn a_new_repository_gets_what_is_in_its_remote() {
    let options = Options { git_allow: vec!["127.0.0.1".to_owned()], ..Options::default() };
    let skep = Skep::start_with(options).await;
    let source = repository(&skep, "source");
    git(&source, &["tag", "v1"]);
    let (_projects, server) = serve_copy(&source).await;
    let url = format!("http://127.0.0.1:{}/x.git", server.port);
    for verb in ["fetch", "pull"] {
        let path = skep.at(verb);
        post(&skep, "init", json!({"path": path})).await;
        post(&skep, "remote", json!({"path": path, "name": "origin", "url": url})).await;
        let body =
            if verb == "pull" { json!({"path": path, "branch": "main"}) } else { json!({"path": path}) };
        post(&skep, verb, body).await;
        // A pull names its branch, so that git looks for no tags.
        assert_eq!(git(&path, &["tag"]).trim(), if verb == "pull" { "" } else { "v1" });
        let fetched = git(&path, &["rev-parse", "origin/main"]);
        assert_eq!(fetched, git(&source, &["rev-parse", "main"]), "{verb}");
        assert!(verb == "fetch" || git(&path, &["rev-parse", "HEAD"]) == fetched);
    }
}

/// The names of folders that a call keeps in the workspace meanwhile.
fn temporary_folders(skep: &Skep) -> usize {
    let entries = fs::read_dir(&skep.account.roots[0]).unwrap();
    entries
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".skep-"))
        .count()
}

/// Sends a request about a repository, and makes a setting in this repository while the request waits for it.
pub(super) async fn send_and_set(
    skep: &Skep,
    verb: &str,
    body: Value,
    key: &str,
    value: &str,
) -> reqwest::Response {
    eventually("the removal of folders", async || temporary_folders(skep) == 0).await;
    let path = body["path"].as_str().unwrap().to_owned();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    git(&path, &["config", "remote.silent.url", &format!("http://{}/x.git", silent.local_addr().unwrap())]);
    let waiting_fetch = send(skep, "fetch", json!({"path": path, "remote": "silent"}));
    let attack = async {
        // The fetch has the repository as long as its remote is silent.
        let connection = silent.accept().await.unwrap();
        let set = async {
            eventually("the folder of the second call", async || temporary_folders(skep) == 2).await;
            git(&path, &["config", key, value]);
            drop((connection, silent));
        };
        tokio::join!(send(skep, verb, body), set).0
    };
    let (fetched, called) = tokio::join!(waiting_fetch, attack);
    refused(fetched, 409, "remote_failed").await;
    called
}

#[tokio::test]
async fn a_setting_that_is_made_while_a_call_waits_for_the_repository_has_no_effect() {
    let options = Options { git_allow: vec!["127.0.0.1".to_owned()], ..Options::default() };
    let skep = Skep::start_with(options).await;
    let path = repository(&skep, "project");
    let (projects, server) = serve_copy(&path).await;
    let bare = projects.path().join("x.git");
    git(&path, &["remote", "add", "origin", &format!("http://127.0.0.1:{}/x.git", server.port)]);
    for (verb, body) in [
        ("push", json!({"path": path, "set_upstream": true})),
        ("fetch", json!({"path": path})),
        ("pull", json!({"path": path})),
    ] {
        let made = commit(&skep, &path, verb, "More").await;
        let called = send_and_set(&skep, verb, body, "http.extraHeader", "x-attack: 1").await;
        assert_eq!(called.status(), StatusCode::OK, "{verb}");
        let answer: Value = called.json().await.unwrap();
        assert!(verb != "push" || answer["to"] == made["commit"], "{answer}");
        assert_eq!(server.attacked.load(Ordering::Relaxed), 0, "{verb}");
        // A setting that is there before is refused.
        refused(send(&skep, verb, json!({"path": path})).await, 409, "hostile_repository").await;
        let asked = server.asked.load(Ordering::Relaxed);
        let at = path.clone();
        // The server of the test runs on this thread.
        tokio::task::spawn_blocking(move || git(at, &["ls-remote", "-q", "origin"])).await.unwrap();
        assert!(server.asked.load(Ordering::Relaxed) > asked);
        assert!(server.attacked.swap(0, Ordering::Relaxed) > 0, "the control: git obeys the setting");
        git(&path, &["config", "--unset", "http.extraHeader"]);
    }
    assert_eq!(git(&bare, &["log", "-1", "--format=%s"]).trim(), "More");
    assert_eq!(git(&path, &["config", "branch.main.remote"]).trim(), "origin");
    eventually("the removal of folders", async || temporary_folders(&skep) == 0).await;
}

/// The folder of a clone exists before git starts, and programs of the account may write there.
#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_is_made_during_a_clone_has_no_effect() {
    let options = Options { git_allow: vec!["127.0.0.1".to_owned()], ..Options::default() };
    let skep = Skep::start_with(options).await;
    let (_projects, server) = serve_copy(&repository(&skep, "source")).await;
    let url = format!("http://127.0.0.1:{}/x.git", server.port);
    let mut settings_before_git = 0;
    let mut path = String::new();
    for attempt in 0..40 {
        path = skep.at(&format!("clone-{attempt}"));
        let before = server.asked.load(Ordering::Relaxed);
        let (configuration, asked) = (Path::new(&path).join(".git/config"), Arc::clone(&server.asked));
        let (ended, attacking) = mpsc::channel::<()>();
        let attacker = std::thread::spawn(move || {
            while attacking.try_recv() == Err(TryRecvError::Empty) {
                if add_header(&configuration) {
                    return asked.load(Ordering::Relaxed) == before;
                }
            }
            false
        });
        send(&skep, "clone", json!({"url": url, "path": path})).await;
        drop(ended);
        let came_before = attacker.join().unwrap() && server.asked.load(Ordering::Relaxed) > before;
        settings_before_git += usize::from(came_before);
        assert_eq!(server.attacked.load(Ordering::Relaxed), 0);
        if settings_before_git == 3 {
            break;
        }
    }
    assert!(settings_before_git > 0, "no setting came before git");
    assert!(add_header(&Path::new(&path).join(".git/config")));
    git(&path, &["ls-remote", "-q", &url]);
    assert!(server.attacked.load(Ordering::Relaxed) > 0, "the control: git obeys the setting");
}

#[tokio::test]
async fn other_ports_and_hosts_that_the_operator_forbids_are_not_connected_to() {
    let skep = Skep::start().await;
    for (url, port, usual) in
        [("https://git.example:8443/x", 8443, 443), ("ssh://git@git.example:2222/x", 2222, 22)]
    {
        let text = forbidden(&skep, url).await;
        let words = [&format!("has port {port}"), &format!("port {usual} only"), "--git-allow git.example"];
        assert!(words.iter().all(|word| text.contains(*word)), "{text}");
    }

    // The control, in which it is reached, is the test before.
    let server = GitServer::start(None).await;
    let git_allow = vec!["127.0.0.0/8".to_owned(), "git.example".to_owned()];
    let egress_deny = vec!["127.0.0.1".to_owned(), "git.example".to_owned()];
    let skep = Skep::start_with(Options { git_allow, egress_deny, ..Options::default() }).await;
    for url in [
        format!("http://127.0.0.1:{}/x", server.port),
        format!("https://127.0.0.1:{}/x", server.port),
        format!("https://localhost:{}/x", server.port),
        format!("ssh://127.0.0.1:{}/x", server.port),
        "https://git.example/x".to_owned(),
        "git@GIT.example:x".to_owned(),
    ] {
        let text = forbidden(&skep, &url).await;
        assert!(text.contains("--egress-deny"), "{url}: {text}");
    }
    assert_eq!(server.asked.load(Ordering::Relaxed), 0);
}

/// The message of the refusal to clone.
async fn forbidden(skep: &Skep, url: &str) -> String {
    let response = send(skep, "clone", json!({"url": url, "path": skep.at("clone")})).await;
    let (status, code) = (response.status().as_u16(), response.headers()["skep-error"].clone());
    let text = response.text().await.unwrap();
    assert_eq!((status, code.as_bytes()), (403, &b"remote_forbidden"[..]), "{url}: {text}");
    text
}

#[derive(Clone)]
enum ServedContent {
    /// Repositories, by `git http-backend`.
    Projects(String),
    /// A redirect to this URL.
    Redirect(String),
}

/// A server on loopback that counts its requests.
pub(super) struct GitServer {
    pub(super) port: u16,
    asked: Arc<AtomicUsize>,
    /// Requests with the header `x-attack`.
    attacked: Arc<AtomicUsize>,
}

impl GitServer {
    async fn start(served: Option<ServedContent>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(AtomicUsize::new(0));
        let attacked = Arc::new(AtomicUsize::new(0));
        let (count, attacks) = (Arc::clone(&asked), Arc::clone(&attacked));
        let answer = async move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            count.fetch_add(1, Ordering::Relaxed);
            attacks.fetch_add(usize::from(headers.contains_key("x-attack")), Ordering::Relaxed);
            match served {
                Some(ServedContent::Projects(folder)) => backend(folder, method, uri, headers, body).await,
                Some(ServedContent::Redirect(to)) => {
                    let to = format!(
                        "{to}{}",
                        uri.path_and_query().unwrap().as_str().trim_start_matches("/x.git")
                    );
                    (StatusCode::FOUND, [("location", to)]).into_response()
                }
                None => StatusCode::NOT_FOUND.into_response(),
            }
        };
        let router = Router::new().fallback(answer);
        tokio::spawn(async move {
            axum_server::from_tcp(listener.into_std().unwrap())
                .unwrap()
                .serve(router.into_make_service())
                .await
        });
        Self { port, asked, attacked }
    }
}

/// Makes git send the header `x-attack`. `false` if there is no such configuration.
fn add_header(configuration: &Path) -> bool {
    let opened = File::options().append(true).open(configuration);
    opened.and_then(|mut file| file.write_all(b"[http]\n\textraHeader = x-attack: 1\n")).is_ok()
}

/// `git http-backend` as CGI (RFC 3875).
pub(super) async fn backend(
    folder: String,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let header =
        |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    let env = [
        ("GIT_PROJECT_ROOT", folder),
        ("GIT_HTTP_EXPORT_ALL", "1".to_owned()),
        ("GIT_CONFIG_GLOBAL", "/dev/null".to_owned()),
        ("REMOTE_USER", "tester".to_owned()),
        ("REQUEST_METHOD", method.to_string()),
        ("PATH_INFO", uri.path().to_owned()),
        ("QUERY_STRING", uri.query().unwrap_or_default().to_owned()),
        ("CONTENT_TYPE", header("content-type")),
        ("CONTENT_LENGTH", body.len().to_string()),
        ("HTTP_CONTENT_ENCODING", header("content-encoding")),
        ("GIT_PROTOCOL", header("git-protocol")),
    ];
    let ran = tokio::task::spawn_blocking(move || {
        let mut backend = std::process::Command::new("git");
        backend.arg("http-backend").envs(env).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut backend = backend.spawn().unwrap();
        let mut stdin = backend.stdin.take().unwrap();
        let feeding = std::thread::spawn(move || stdin.write_all(&body));
        let output = backend.wait_with_output().unwrap();
        let _ = feeding.join();
        output.stdout
    });
    let output = ran.await.unwrap();
    let end = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let mut response = axum::body::Body::from(output[end + 4..].to_vec()).into_response();
    for line in head.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        if name == "Status" {
            *response.status_mut() = value[..3].parse().unwrap();
        } else {
            let name: axum::http::HeaderName = name.parse().unwrap();
            response.headers_mut().insert(name, value.parse().unwrap());
        }
    }
    response
}
