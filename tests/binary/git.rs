//! Git operations in the server's workspace and in a VM: the same tests in both places, with the same answers.

mod thorough;
mod tokens;
mod transfers;
mod verbs;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    files::fixture::{Fixture, in_both_places},
    harness::{Skep, step, temp_dir},
    webhooks::https::Authority,
};

#[tokio::test]
async fn git_is_the_same_on_the_server_and_in_a_vm() {
    in_both_places(async |fixture| {
        a_history(fixture).await;
        branches_and_work_trees(fixture).await;
        clones(fixture).await;
        refusals(fixture).await;
    })
    .await;
}

/// The keeper passes the filter on, also after a restart, which reloads the settings.
#[tokio::test]
async fn a_filter_that_the_operator_names_runs_on_the_server() {
    let data_dir = temp_dir();
    let known = data_dir.path().join("gitconfig");
    std::fs::write(&known, "[filter \"case\"]\n\tclean = tr A-Z a-z\n\tsmudge = tr a-z A-Z\n").unwrap();
    let skep = Skep::start_as(data_dir, |command| {
        command.args(["--git-filter", "case"]).env("GIT_CONFIG_SYSTEM", &known);
    })
    .await;
    let fixture = Fixture::on_the_server(&skep).await;
    post(&fixture, "init", json!({"path": "work"}), 201).await;
    write(&fixture, "work/.gitattributes", "*.txt filter=case\n").await;
    for (number, name) in ["a.txt", "b.txt"].into_iter().enumerate() {
        write(&fixture, &format!("work/{name}"), "SHOUTED\n").await;
        post(&fixture, "add", json!({"path": "work"}), 200).await;
        post(&fixture, "commit", json!({"path": "work", "message": name}), 201).await;
        assert_eq!(git(&fixture, "work", &format!("cat-file blob HEAD:{name}")).await, "shouted");
        fixture.remove(&format!("work/{name}"), &[]).await.ok(200);
        post(&fixture, "reset", json!({"path": "work", "mode": "hard"}), 200).await;
        assert_eq!(fixture.read(&format!("work/{name}"), &[]).await.ok(200)["content"], "SHOUTED\n");
        if number == 0 {
            skep.post("/api/admin/restart", &json!({})).await.ok(202);
        }
    }
}

#[tokio::test]
async fn a_hostile_repository_starts_nothing_in_either_place() {
    in_both_places(hostile).await;
}

async fn get(fixture: &Fixture<'_>, verb: &str, name: &str, query: &[(&str, &str)]) -> Value {
    fixture.get(&format!("/api/git/{verb}"), name, query).await.ok(200)
}

/// The body's `path` and `worktree` are names in the folder of the test.
async fn post(fixture: &Fixture<'_>, verb: &str, mut body: Value, status: u16) -> Value {
    for field in ["path", "worktree"] {
        if let Some(name) = body[field].as_str() {
            body[field] = json!(fixture.at(name));
        }
    }
    fixture.post(&format!("/api/git/{verb}"), &body).await.ok(status)
}

async fn write(fixture: &Fixture<'_>, name: &str, content: &str) {
    let answer = fixture.write(&json!({"path": fixture.at(name), "content": content})).await;
    assert!(answer.status.is_success(), "{fixture:?}: {answer:?}");
}

/// Runs plain git, without the API.
async fn git(fixture: &Fixture<'_>, name: &str, arguments: &str) -> String {
    let person = "-c user.name=Ada -c user.email=ada@example.com -c safe.directory='*'";
    fixture.shell(&format!("cd {name} && HOME=/nonexistent git {person} {arguments}")).await
}

fn paths(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect()
}

async fn a_history(fixture: &Fixture<'_>) {
    assert_eq!(post(fixture, "init", json!({"path": "work"}), 201).await["branch"], "main", "{fixture:?}");
    assert_eq!(get(fixture, "log", "work", &[]).await, json!({"commits": [], "next_cursor": null}));
    write(fixture, "work/src/a file", "one\ntwo\n").await;
    write(fixture, "work/other", "x\n").await;
    let status = get(fixture, "status", "work/src", &[]).await;
    assert_eq!((paths(&status["untracked"]), &status["head"]), (vec!["other", "src/a file"], &Value::Null));
    post(fixture, "add", json!({"path": "work", "files": ["src/a file"]}), 200).await;
    let person = json!({"name": "Ada", "email": "ada@example.com"});
    let body = json!({"path": "work", "message": "Begin\n\nWith one file.", "author": person});
    let first = post(fixture, "commit", body, 201).await;
    assert_eq!((&first["files_changed"], &first["additions"]), (&json!(1), &json!(2)));
    write(fixture, "work/src/a file", "one\n2\n").await;
    let diff = get(fixture, "diff", "work", &[]).await;
    assert_eq!((&diff["files"][0]["additions"], &diff["files"][0]["deletions"]), (&json!(1), &json!(1)));
    assert!(diff["diff"].as_str().unwrap().contains("-two\n+2\n"), "{diff}");
    let status = get(fixture, "status", "work", &[]).await;
    assert_eq!((paths(&status["modified"]), &status["clean"]), (vec!["src/a file"], &json!(false)));
    let second = post(fixture, "commit", json!({"path": "work", "message": "Go on", "all": true}), 201).await;
    let log = get(fixture, "log", "work", &[("limit", "1")]).await;
    assert_eq!(
        (&log["commits"][0]["id"], &log["commits"][0]["parents"]),
        (&second["commit"], &json!([first["commit"]]))
    );
    let cursor = log["next_cursor"].as_str().unwrap();
    let next = get(fixture, "log", "work", &[("limit", "1"), ("cursor", cursor)]).await;
    assert_eq!(
        (&next["commits"][0]["subject"], &next["commits"][0]["body"]),
        (&json!("Begin"), &json!("With one file."))
    );
    assert_eq!((&next["commits"][0]["author"]["name"], &next["next_cursor"]), (&json!("Ada"), &Value::Null));
    let of_file = get(fixture, "log", "work", &[("file", "other")]).await;
    assert_eq!(of_file["commits"], json!([]));
    // Plain git shows the same.
    assert_eq!(git(fixture, "work", "log --format=%H").await.lines().next(), second["commit"].as_str());
    // A history in a pack reads as one in single files.
    git(fixture, "work", "gc -q").await;
    assert_eq!(get(fixture, "log", "work", &[("limit", "1")]).await, log);
}

async fn branches_and_work_trees(fixture: &Fixture<'_>) {
    let out = post(fixture, "checkout", json!({"path": "work", "ref": "topic", "create": true}), 200).await;
    assert_eq!(out["branch"], "topic", "{fixture:?}");
    write(fixture, "work/topic", "t\n").await;
    post(fixture, "add", json!({"path": "work"}), 200).await;
    let made = post(fixture, "commit", json!({"path": "work", "message": "Topic"}), 201).await;
    let branches = get(fixture, "branch", "work", &[]).await;
    let names: Vec<_> = branches["branches"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!((names, &branches["current"]), (vec![&json!("main"), &json!("topic")], &json!("topic")));
    post(fixture, "checkout", json!({"path": "work", "ref": "main"}), 200).await;
    fixture.read("work/topic", &[]).await.refused(404, "unknown_path");
    a_branch_that_is_not_checked_out(fixture, &made["commit"]).await;
    let tree = json!({"path": "work", "worktree": "beside", "ref": "topic"});
    assert_eq!(post(fixture, "worktree", tree, 200).await["head"], made["commit"]);
    assert_eq!(get(fixture, "status", "beside", &[]).await["branch"], "topic");
    assert_eq!(get(fixture, "log", "beside", &[]).await["commits"][0]["id"], made["commit"]);
    assert_eq!(get(fixture, "worktree", "work", &[]).await["worktrees"].as_array().unwrap().len(), 2);
    post(fixture, "worktree", json!({"path": "work", "worktree": "beside", "remove": true}), 200).await;
    write(fixture, "work/other", "changed\n").await;
    let put = json!({"path": "work", "action": "push", "message": "half done"});
    let stashes = post(fixture, "stash", put, 200).await;
    assert!(stashes["stashes"][0]["message"].as_str().unwrap().contains("half done"), "{stashes}");
    assert_eq!(get(fixture, "status", "work", &[]).await["clean"], true);
    post(fixture, "stash", json!({"path": "work", "action": "pop"}), 200).await;
    assert_eq!(fixture.read("work/other", &[]).await.ok(200)["content"], "changed\n");
    post(fixture, "add", json!({"path": "work"}), 200).await;
    post(fixture, "reset", json!({"path": "work", "mode": "hard"}), 200).await;
    assert_eq!(get(fixture, "status", "work", &[]).await["clean"], true);
}

async fn a_branch_that_is_not_checked_out(fixture: &Fixture<'_>, topic: &Value) {
    let lists = async |expected: &[&str]| {
        let branches = get(fixture, "branch", "work", &[]).await;
        let all = branches["branches"].as_array().unwrap().iter();
        let names: Vec<_> = all.map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!((names, &branches["current"]), (expected.to_vec(), &json!("main")), "{fixture:?}");
    };
    let made = post(fixture, "branch", json!({"path": "work", "name": "other", "from": "topic"}), 200).await;
    assert_eq!((&made["commit"], &made["deleted"]), (topic, &json!(false)), "{fixture:?}");
    lists(&["main", "other", "topic"]).await;
    let delete = json!({"path": "work", "name": "other", "delete": true, "force": true});
    assert_eq!(post(fixture, "branch", delete, 200).await["deleted"], true, "{fixture:?}");
    lists(&["main", "topic"]).await;
}

async fn clones(fixture: &Fixture<'_>) {
    let cloned = json!({"url": fixture.at("work"), "path": "copy", "branch": "topic"});
    assert_eq!(post(fixture, "clone", cloned, 201).await["branch"], "topic", "{fixture:?}");
    write(fixture, "copy/mine", "m\n").await;
    post(fixture, "add", json!({"path": "copy"}), 200).await;
    post(fixture, "commit", json!({"path": "copy", "message": "Mine"}), 201).await;
    let branches = get(fixture, "branch", "copy", &[("remote", "true")]).await;
    let topic = &branches["branches"][0];
    assert_eq!(
        (&topic["upstream"], &topic["ahead"], &topic["behind"]),
        (&json!("origin/topic"), &json!(1), &json!(0))
    );
    let names: Vec<_> = branches["branches"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["topic", "origin/main", "origin/topic"]);
}

async fn refusals(fixture: &Fixture<'_>) {
    let asked = async |verb: &str, name: &str, query: &[(&str, &str)]| {
        fixture.get(&format!("/api/git/{verb}"), name, query).await
    };
    fixture.shell("mkdir plain").await;
    asked("log", "plain", &[]).await.refused(404, "unknown_repository");
    asked("log", "nothing", &[]).await.refused(404, "unknown_path");
    asked("log", "work", &[("ref", "nothing")]).await.refused(404, "unknown_revision");
    asked("log", "work", &[("ref", "--all")]).await.refused(400, "invalid_value");
    git(fixture, ".", "clone -q --bare work bare.git").await;
    asked("status", "bare.git", &[]).await.refused(409, "bare_repository");
    assert_eq!(get(fixture, "log", "bare.git", &[]).await["commits"].as_array().unwrap().len(), 2);
    fixture.shell("touch work/.git/index.lock").await;
    fixture
        .post("/api/git/add", &json!({"path": fixture.at("work")}))
        .await
        .refused(409, "repository_locked");
}

/// Calls that write, each with what it needs beside the path.
fn writing_calls() -> Vec<(&'static str, Value)> {
    vec![
        ("add", json!({})),
        ("commit", json!({"message": "x", "allow_empty": true})),
        ("checkout", json!({"ref": "made", "create": true})),
        ("stash", json!({"action": "push"})),
        ("stash", json!({"action": "pop"})),
        ("reset", json!({"mode": "hard"})),
        ("tag", json!({"name": "x", "message": "x"})),
        ("merge", json!({"ref": "main"})),
        ("remote", json!({"name": "x", "url": "/nowhere"})),
        ("fetch", json!({"remote": "x"})),
    ]
}

/// A repository whose settings would start a program.
async fn hostile(fixture: &Fixture<'_>) {
    let canary = fixture.at("canary");
    let trace = fixture.at("trace");
    fixture
        .shell(&format!("printf '#!/bin/sh\\necho \"$0 $*\" >> {trace}\\ncat\\n' > canary; chmod 755 canary"))
        .await;
    fixture.shell("mkdir bad").await;
    git(fixture, "bad", "init -q -b main").await;
    write(fixture, "bad/file", "one\n").await;
    git(fixture, "bad", "add .").await;
    git(fixture, "bad", "commit -qm First").await;
    let hooks = "mkdir -p .git/hooks; for hook in pre-commit post-checkout post-index-change reference-transaction; do \
                 cp ../canary .git/hooks/$hook; done";
    // By one program, since each takes long to start in an emulated guest.
    let settings = format!(
        "[core]\nfsmonitor = {canary}\npager = {canary}\nsshCommand = {canary}\n[diff]\nexternal = {canary}\n\
         [diff \"evil\"]\ntextconv = {canary}\n[filter \"evil\"]\nclean = {canary}\nsmudge = {canary}\n\
         [gpg]\nprogram = {canary}\n[commit]\ngpgSign = true"
    );
    let set = format!("cat >> .git/config <<'END'\n{settings}\nEND");
    fixture.shell(&format!("cd bad; echo '* filter=evil diff=evil' > .gitattributes\n{hooks}\n{set}")).await;
    assert_eq!(fixture.shell("git config -f bad/.git/config diff.evil.textconv").await, canary);
    for (verb, mut body) in writing_calls() {
        write(fixture, "bad/file", &format!("{verb}\n")).await;
        // What looks at files does so after each change, the others look at the last one's work.
        for read in ["status", "diff"] {
            get(fixture, read, "bad", &[]).await;
        }
        body["path"] = json!(fixture.at("bad"));
        let answer = fixture.post(&format!("/api/git/{verb}"), &body).await;
        assert!(answer.status.as_u16() < 500, "{verb}: {answer:?}");
    }
    for read in ["log", "branch", "worktree", "show", "tag", "remote"] {
        get(fixture, read, "bad", &[]).await;
    }
    assert_eq!(
        fixture.shell("cat trace 2>/dev/null || echo nothing ran").await,
        "nothing ran",
        "{fixture:?}"
    );
    // The control: plain git starts it.
    write(fixture, "bad/file", "control\n").await;
    git(fixture, "bad", "--no-pager diff >/dev/null 2>&1 || true").await;
    assert!(fixture.shell("cat trace").await.contains("canary"), "{fixture:?}: the control started nothing");
}

/// A git server on the loopback address of this machine, which VMs cannot reach.
struct Remote {
    process: Child,
    folder: tempfile::TempDir,
    url: String,
}

impl Remote {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments.
    fn start_with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("git/remote.py");
        let mut python = Command::new("python3");
        let python = python.arg(script).arg(folder.path()).args(arguments);
        let mut process = python.stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let url = format!("http://127.0.0.1:{}/x.git", port.trim());
        let remote = Self { process, folder, url };
        remote.git(&["init", "-q", "--bare", "-b", "main", "x.git"]);
        remote
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    fn git(&self, arguments: &[&str]) -> String {
        let person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let output =
            Command::new("git").args(person).args(arguments).current_dir(self.folder.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Commits to the remote, as another user.
    fn commit(&self, file: &str, content: &str) -> String {
        if !self.at("other").exists() {
            self.git(&["clone", "-q", "x.git", "other"]);
        }
        self.git(&["-C", "other", "pull", "-q", "--ff-only"]);
        std::fs::write(self.at("other").join(file), content).unwrap();
        self.git(&["-C", "other", "add", "."]);
        self.git(&["-C", "other", "commit", "-qm", content]);
        self.git(&["-C", "other", "push", "-q"]);
        self.git(&["-C", "other", "rev-parse", "HEAD"])
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn what_a_vm_pushes_and_pulls_goes_through_the_server() {
    let remote = Remote::start();
    let authority = Authority::new("of git hosts");
    let (_folder, trusted) = authority.file();
    let skep = Skep::start_as(temp_dir(), |command| {
        command.args(["--git-allow", "127.0.0.1"]).env("SSL_CERT_FILE", &trusted);
    })
    .await;
    let vm = skep.boot_one().await;
    let fixture = Fixture::in_vm(&skep, vm).await;
    sends_and_fetches(&fixture, &remote).await;
    shallow_clones(&fixture, &remote).await;
    diverged_branches(&fixture, &remote).await;
    what_is_refused(&fixture, &remote).await;
    step("a host with a token", tokens::never_enter_a_vm(&skep, vm, &authority)).await;
    // No temporary files are left.
    let root = Fixture::root_on_the_server(&skep).await;
    let entries = std::fs::read_dir(root).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), [""; 0]);
}

async fn sends_and_fetches(fixture: &Fixture<'_>, remote: &Remote) {
    post(fixture, "init", json!({"path": "work"}), 201).await;
    git(fixture, "work", &format!("remote add origin {}", remote.url)).await;
    write(fixture, "work/file", "one\n").await;
    post(fixture, "add", json!({"path": "work"}), 200).await;
    let first =
        post(fixture, "commit", json!({"path": "work", "message": "First"}), 201).await["commit"].clone();
    let push = json!({"path": "work", "set_upstream": true});
    let pushed = post(fixture, "push", push, 200).await;
    assert_eq!(
        (&pushed["to"], &pushed["created"], &pushed["from"]),
        (&first, &json!(true), &Value::Null),
        "{fixture:?}"
    );
    assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "main"]), first.as_str().unwrap());
    let main = get(fixture, "branch", "work", &[]).await["branches"][0].clone();
    assert_eq!(
        (&main["upstream"], &main["ahead"], &main["behind"]),
        (&json!("origin/main"), &json!(0), &json!(0))
    );

    let theirs = remote.commit("theirs", "theirs");
    let pulled = post(fixture, "pull", json!({"path": "work"}), 200).await;
    assert_eq!(
        (&pulled["from"], &pulled["to"], &pulled["commits"]),
        (&first, &json!(theirs), &json!(1)),
        "{fixture:?}"
    );
    assert_eq!(fixture.read("work/theirs", &[]).await.ok(200)["content"], "theirs");
    assert_eq!(post(fixture, "pull", json!({"path": "work"}), 200).await["commits"], 0);
}

/// A shallow clone gets missing commits from the remote.
async fn shallow_clones(fixture: &Fixture<'_>, remote: &Remote) {
    let cloned = json!({"url": remote.url, "path": "short", "depth": 1});
    let began = post(fixture, "clone", cloned, 201).await["head"].clone();
    assert_eq!(
        get(fixture, "log", "short", &[]).await["commits"].as_array().unwrap().len(),
        1,
        "{fixture:?}"
    );
    write(fixture, "short/short", "short\n").await;
    post(fixture, "add", json!({"path": "short"}), 200).await;
    let ours =
        post(fixture, "commit", json!({"path": "short", "message": "Short"}), 201).await["commit"].clone();
    let pushed = post(fixture, "push", json!({"path": "short"}), 200).await;
    assert_eq!((&pushed["from"], &pushed["to"]), (&began, &ours), "{fixture:?}");
    remote.git(&["-C", "x.git", "fsck", "--connectivity-only", "--no-dangling"]);
    assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "--is-shallow-repository"]), "false");

    let theirs = remote.commit("theirs", "theirs for the short one");
    let pulled = post(fixture, "pull", json!({"path": "short"}), 200).await;
    assert_eq!((&pulled["to"], &pulled["commits"]), (&json!(theirs), &json!(1)), "{fixture:?}");
    assert_eq!(
        get(fixture, "log", "short", &[]).await["commits"].as_array().unwrap().len(),
        3,
        "{fixture:?}"
    );
    git(fixture, "short", "fsck").await;
    post(fixture, "pull", json!({"path": "work"}), 200).await;
}

/// Both sides add commits, and none is lost.
async fn diverged_branches(fixture: &Fixture<'_>, remote: &Remote) {
    let theirs = remote.commit("theirs", "theirs again");
    write(fixture, "work/ours", "ours\n").await;
    post(fixture, "add", json!({"path": "work"}), 200).await;
    let ours =
        post(fixture, "commit", json!({"path": "work", "message": "Ours"}), 201).await["commit"].clone();
    let send = async |verb: &str, body: Value| fixture.post(&format!("/api/git/{verb}"), &body).await;
    let path = fixture.at("work");
    send("push", json!({"path": path})).await.refused(409, "push_rejected");
    send("pull", json!({"path": path})).await.refused(409, "merge_conflict");
    let pulled = post(fixture, "pull", json!({"path": "work", "strategy": "rebase"}), 200).await;
    assert_ne!(pulled["to"], ours);
    let log = get(fixture, "log", "work", &[]).await;
    assert_eq!(
        (&log["commits"][0]["subject"], &log["commits"][1]["id"]),
        (&json!("Ours"), &json!(theirs)),
        "{fixture:?}"
    );
    let pushed = post(fixture, "push", json!({"path": "work"}), 200).await;
    assert_eq!((&pushed["from"], &pushed["created"]), (&json!(theirs), &json!(false)), "{fixture:?}");

    // A replaced commit is accepted where the remote has not changed.
    let body = json!({"path": "work", "message": "Ours, better", "amend": true});
    let amended = post(fixture, "commit", body, 201).await["commit"].clone();
    send("push", json!({"path": path})).await.refused(409, "push_rejected");
    let forced = post(fixture, "push", json!({"path": "work", "force_with_lease": true}), 200).await;
    assert_eq!(forced["to"], amended);
    remote.commit("theirs", "faster");
    let body = json!({"path": "work", "message": "Ours, best", "amend": true});
    post(fixture, "commit", body, 201).await;
    send("push", json!({"path": path, "force_with_lease": true})).await.refused(409, "push_rejected");
}

async fn what_is_refused(fixture: &Fixture<'_>, remote: &Remote) {
    let send = async |verb: &str, body: Value| fixture.post(&format!("/api/git/{verb}"), &body).await;
    let path = fixture.at("work");
    // Changes of both sides to the same lines conflict, and the work tree is unchanged.
    remote.commit("ours", "not yours");
    send("pull", json!({"path": path, "strategy": "merge"})).await.refused(409, "merge_conflict");
    assert_eq!(get(fixture, "status", "work", &[]).await["clean"], true);
    send("pull", json!({"path": path, "branch": "nothing"})).await.refused(404, "unknown_revision");
    send("push", json!({"path": path, "remote": "nobody"})).await.refused(404, "unknown_remote");
    // The server reaches only hosts that the operator allowed.
    git(fixture, "work", "remote set-url origin http://127.0.0.2:1/x.git").await;
    send("push", json!({"path": path})).await.refused(403, "remote_forbidden");
    // A path refers to the place of the repository.
    git(fixture, ".", "init -q --bare -b main near.git").await;
    git(fixture, "work", "remote set-url origin ../near.git").await;
    assert_eq!(post(fixture, "push", json!({"path": "work"}), 200).await["created"], true, "{fixture:?}");
    assert_eq!(post(fixture, "pull", json!({"path": "work"}), 200).await["commits"], 0);
}
