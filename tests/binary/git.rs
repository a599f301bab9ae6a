//! Git operations in the server's workspace and in a VM: the same tests in both places, with the same answers.

mod hostile;
mod network_dir;
mod push_and_pull;
mod relay_policy;
mod remote;
mod thorough;
mod tokens;
mod transfers;
mod verbs;

use serde_json::{Value, json};

use crate::{
    files::fixture::{Fixture, in_both_places},
    harness::{Skep, temp_dir},
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

/// Operations that read give the same error as those that write.
#[tokio::test]
async fn a_vm_without_git_says_so_for_each_operation() {
    let skep = Skep::start().await;
    let vm = skep.boot_one().await;
    skep.output(vm, "git init -q work && touch work/file").await;
    let query = format!("path=/root/work&vm={vm}");
    assert_eq!(skep.get(&format!("/api/git/status?{query}")).await.ok(200)["untracked"][0]["path"], "file");
    skep.output(vm, "mv /usr/bin/git /usr/bin/git-elsewhere").await;
    let missing = "`git` is not installed here; install it";
    for verb in ["status", "log", "diff", "branch", "show", "tag", "worktree"] {
        let answer = skep.get(&format!("/api/git/{verb}?{query}")).await;
        assert_eq!(answer.refused(409, "git_refused"), missing, "{verb}");
    }
    let add = skep.post("/api/git/add", &json!({"path": "/root/work", "vm": vm})).await;
    assert_eq!(add.refused(409, "git_refused"), missing);
    skep.output(vm, "mv /usr/bin/git-elsewhere /usr/bin/git").await;
    assert_eq!(skep.get(&format!("/api/git/status?{query}")).await.ok(200)["clean"], false);
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
