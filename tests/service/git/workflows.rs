//! Common sequences of git operations.

use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use super::{commit, get, git, post, refused, repository, send, try_git};
use crate::harness::Skep;

#[tokio::test]
async fn from_an_empty_folder_to_a_history() {
    let skep = Skep::start().await;
    let path = skep.at("project");
    let made = post(&skep, "init", json!({"path": path})).await;
    assert_eq!(made["branch"], "main");
    refused(send(&skep, "init", json!({"path": path})).await, 409, "already_exists").await;
    // Nothing is committed yet.
    let status = get(&skep, "status", &format!("path={path}")).await;
    assert_eq!(
        (&status["branch"], &status["head"], &status["clean"]),
        (&json!("main"), &json!(null), &json!(true))
    );
    assert_eq!(get(&skep, "log", &format!("path={path}")).await, json!({"commits": [], "next_cursor": null}));
    assert_eq!(get(&skep, "branch", &format!("path={path}")).await["current"], "main");
    let empty = json!({"path": path, "message": "x"});
    refused(send(&skep, "commit", empty).await, 409, "nothing_to_commit").await;

    std::fs::write(format!("{path}/a file\nwith lines"), "one\ntwo\n").unwrap();
    std::fs::create_dir(format!("{path}/src")).unwrap();
    std::fs::write(format!("{path}/src/main.rs"), "fn main() {}\n").unwrap();
    let status = get(&skep, "status", &format!("path={path}/src")).await;
    assert_eq!(status["untracked"], json!([{"path": "a file\nwith lines"}, {"path": "src/main.rs"}]));
    let staged = post(&skep, "add", json!({"path": path, "files": ["a file\nwith lines"]})).await;
    assert_eq!(staged["staged"], json!([{"path": "a file\nwith lines", "change": "added", "from": null}]));
    let made = post(&skep, "commit", json!({"path": path, "message": "Say two\n\nBoth."})).await;
    assert_eq!(
        (&made["branch"], &made["subject"], &made["files_changed"], &made["additions"], &made["deletions"]),
        (&json!("main"), &json!("Say two"), &json!(1), &json!(2), &json!(0))
    );
    let log = get(&skep, "log", &format!("path={path}")).await;
    let first = &log["commits"][0];
    assert_eq!(
        (&first["id"], &first["body"], &first["parents"]),
        (&made["commit"], &json!("Both."), &json!([]))
    );
    let own: Value = skep.get("/api/whoami").await.json().await.unwrap();
    assert_eq!(
        (&first["author"]["name"], &first["committer"]["name"]),
        (&own["key"]["name"], &own["key"]["name"])
    );
    // Commits all files. The path may be omitted, since there is only one repository.
    post(&skep, "add", json!({"path": path})).await;
    let diff = get(&skep, "diff", "staged=true").await;
    assert_eq!(diff["files"][0]["path"], "src/main.rs");
    assert!(diff["diff"].as_str().unwrap().contains("+fn main() {}"));
    let ada = json!({"name": "Ada", "email": "ada@example.com"});
    post(&skep, "commit", json!({"path": path, "message": "Begin", "author": ada})).await;
    let log = get(&skep, "log", "limit=1").await;
    assert_eq!(log["commits"][0]["author"]["name"], "Ada");
    let next = get(&skep, "log", &format!("limit=1&cursor={}", log["next_cursor"].as_str().unwrap())).await;
    assert_eq!((&next["commits"][0]["id"], &next["next_cursor"]), (&made["commit"], &json!(null)));
}

#[tokio::test]
async fn each_kind_of_change_is_in_its_list() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    for name in ["gone", "moved", "typed"] {
        std::fs::write(format!("{path}/{name}"), format!("{name} with some content\n")).unwrap();
    }
    git(&path, &["add", "."]);
    git(&path, &["commit", "-qm", "More"]);
    git(&path, &["mv", "moved", "to"]);
    git(&path, &["rm", "-q", "gone"]);
    std::fs::write(format!("{path}/file"), "two\n").unwrap();
    std::fs::remove_file(format!("{path}/typed")).unwrap();
    std::os::unix::fs::symlink("file", format!("{path}/typed")).unwrap();
    let strange = std::ffi::OsStr::from_bytes(b"new\xff");
    std::fs::write(std::path::Path::new(&path).join(strange), "").unwrap();
    let status = get(&skep, "status", &format!("path={path}")).await;
    let change = |list: &str, path: &str| {
        let found = status[list].as_array().unwrap().iter().find(|one| one["path"] == path);
        found.unwrap_or_else(|| panic!("{path}: {status}"))["change"].clone()
    };
    assert_eq!(change("staged", "to"), "renamed");
    assert_eq!(change("staged", "gone"), "deleted");
    assert_eq!(change("modified", "file"), "modified");
    assert_eq!(change("modified", "typed"), "typechange");
    assert_eq!(status["untracked"], json!([{"path": "new%FF", "path_encoding": "percent"}]));
    let diff = get(&skep, "diff", &format!("path={path}&from=HEAD&file=file&context=0")).await;
    let file = &diff["files"][0];
    assert_eq!(
        (&file["additions"], &file["deletions"], &file["binary"]),
        (&json!(1), &json!(1), &json!(false))
    );
    let between = get(&skep, "diff", &format!("path={path}&from=HEAD~1&to=HEAD")).await;
    assert_eq!(between["files"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn branches_work_trees_stashes_and_resets() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let first = get(&skep, "log", &format!("path={path}")).await["commits"][0]["id"].clone();
    let out = post(&skep, "checkout", json!({"path": path, "ref": "topic", "create": true})).await;
    assert_eq!((&out["branch"], &out["detached"]), (&json!("topic"), &json!(false)));
    let made = commit(&skep, &path, "two\n", "Second").await;
    assert_eq!(made["branch"], "topic");
    let out = post(&skep, "checkout", json!({"path": path, "ref": first})).await;
    assert_eq!((&out["branch"], &out["head"], &out["detached"]), (&json!(null), &first, &json!(true)));
    assert_eq!(get(&skep, "status", &format!("path={path}")).await["detached"], true);
    post(&skep, "checkout", json!({"path": path, "ref": "main"})).await;
    refused(send(&skep, "checkout", json!({"path": path, "ref": "nothing"})).await, 404, "unknown_revision")
        .await;

    let branch = post(&skep, "branch", json!({"path": path, "name": "other", "from": "topic"})).await;
    assert_eq!((&branch["commit"], &branch["deleted"]), (&made["commit"], &json!(false)));
    let again = json!({"path": path, "name": "other"});
    refused(send(&skep, "branch", again).await, 409, "already_exists").await;
    refused(send(&skep, "branch", json!({"path": path, "name": "a..b"})).await, 400, "invalid_value").await;
    post(&skep, "branch", json!({"path": path, "name": "other", "delete": true, "force": true})).await;
    let branches = get(&skep, "branch", &format!("path={path}")).await;
    let names: Vec<_> =
        branches["branches"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!((names, &branches["current"]), (vec![json!("main"), json!("topic")], &json!("main")));

    let beside = skep.at("beside");
    let added = post(&skep, "worktree", json!({"path": path, "worktree": beside, "ref": "topic"})).await;
    assert_eq!((&added["head"], &added["branch"]), (&made["commit"], &json!("topic")));
    // A work tree can be used like a repository.
    assert_eq!(get(&skep, "status", &format!("path={beside}")).await["branch"], "topic");
    let list = get(&skep, "worktree", &format!("path={path}")).await;
    assert_eq!(list["worktrees"].as_array().unwrap().len(), 2);
    post(&skep, "worktree", json!({"path": path, "worktree": beside, "remove": true})).await;
    assert!(!std::path::Path::new(&beside).exists());

    std::fs::write(format!("{path}/file"), "changed\n").unwrap();
    std::fs::write(format!("{path}/new"), "new\n").unwrap();
    let stash = json!({"path": path, "action": "push", "message": "half done"});
    let stashes = post(&skep, "stash", stash.clone()).await;
    assert!(stashes["stashes"][0]["message"].as_str().unwrap().contains("half done"));
    assert_eq!(std::fs::read_to_string(format!("{path}/file")).unwrap(), "one\n");
    assert!(!std::path::Path::new(&format!("{path}/new")).exists());
    refused(send(&skep, "stash", stash).await, 409, "nothing_to_commit").await;
    assert_eq!(post(&skep, "stash", json!({"path": path, "action": "pop"})).await["stashes"], json!([]));
    assert!(std::path::Path::new(&format!("{path}/new")).exists());
    let reset = post(&skep, "reset", json!({"path": path, "to": "topic", "mode": "hard"})).await;
    assert_eq!(reset["head"], made["commit"]);
    assert_eq!(std::fs::read_to_string(format!("{path}/file")).unwrap(), "two\n");
    let amended = json!({"path": path, "message": "Once more", "amend": true});
    assert_eq!(post(&skep, "commit", amended).await["subject"], "Once more");
}

#[tokio::test]
async fn a_reset_changes_what_its_mode_says() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let first = get(&skep, "log", &format!("path={path}")).await["commits"][0]["id"].clone();
    let second = commit(&skep, &path, "two\n", "Second").await["commit"].clone();
    for (mode, list) in [(json!("soft"), "staged"), (json!("mixed"), "modified"), (json!(null), "modified")] {
        let back = json!({"path": path, "to": first, "mode": mode});
        assert_eq!(post(&skep, "reset", back).await["head"], first, "{mode}");
        assert_eq!(std::fs::read_to_string(format!("{path}/file")).unwrap(), "two\n", "{mode}");
        let status = get(&skep, "status", &format!("path={path}")).await;
        for other in ["staged", "modified"] {
            let names: Vec<_> = status[other].as_array().unwrap().iter().map(|one| &one["path"]).collect();
            assert_eq!(names, if other == list { vec!["file"] } else { vec![] }, "{mode}: {status}");
        }
        post(&skep, "reset", json!({"path": path, "to": second})).await;
    }
}

#[tokio::test]
async fn a_stash_is_applied_until_it_is_dropped() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let stash = async |action: &str| post(&skep, "stash", json!({"path": path, "action": action})).await;
    std::fs::write(format!("{path}/file"), "changed\n").unwrap();
    let pushed = stash("push").await;
    assert_eq!(std::fs::read_to_string(format!("{path}/file")).unwrap(), "one\n");
    assert_eq!(stash("apply").await, pushed, "it is kept");
    assert_eq!(stash("list").await, pushed);
    assert_eq!(stash("drop").await["stashes"], json!([]));
    assert_eq!(std::fs::read_to_string(format!("{path}/file")).unwrap(), "changed\n");
    let again = json!({"path": path, "action": "drop"});
    refused(send(&skep, "stash", again).await, 409, "nothing_to_commit").await;
}

#[tokio::test]
async fn an_empty_commit_is_made_on_request_alone() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let mut empty = json!({"path": path, "message": "Nothing"});
    refused(send(&skep, "commit", empty.clone()).await, 409, "nothing_to_commit").await;
    empty["allow_empty"] = json!(true);
    let made = post(&skep, "commit", empty).await;
    assert_eq!((&made["subject"], &made["files_changed"]), (&json!("Nothing"), &json!(0)));
    let log = get(&skep, "log", &format!("path={path}")).await;
    assert_eq!((&log["commits"][0]["id"], &log["commits"][1]["subject"]), (&made["commit"], &json!("First")));
}

#[tokio::test]
async fn files_to_stage_are_names_and_no_patterns() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    std::fs::write(format!("{path}/a.rs"), "").unwrap();
    let pattern = json!({"path": path, "files": ["*.rs"]});
    refused(send(&skep, "add", pattern.clone()).await, 404, "unknown_path").await;
    std::fs::write(format!("{path}/*.rs"), "").unwrap();
    let staged = post(&skep, "add", pattern).await;
    assert_eq!(staged["staged"], json!([{"path": "*.rs", "change": "added", "from": null}]));
}

#[tokio::test]
async fn the_path_may_be_left_out_where_one_repository_is_meant() {
    let skep = Skep::start().await;
    let message = refused(skep.get("/api/git/log").await, 400, "invalid_value").await;
    assert!(message.contains("`path` is missing"), "{message}");
    repository(&skep, "one");
    assert_eq!(get(&skep, "log", "").await["commits"].as_array().unwrap().len(), 1);
    repository(&skep, "two");
    let message = refused(skep.get("/api/git/branch").await, 400, "invalid_value").await;
    assert!(message.contains(&skep.at("one")) && message.contains(&skep.at("two")), "{message}");
    repository(&skep, "");
    assert_eq!(get(&skep, "diff", "").await["files"], json!([]));
}

#[tokio::test]
async fn missing_repositories_and_wrong_states_are_refused_by_name() {
    let skep = Skep::start().await;
    std::fs::create_dir(skep.at("plain")).unwrap();
    let at = |name: &str| format!("/api/git/status?path={}", skep.at(name));
    refused(skep.get(&at("plain")).await, 404, "unknown_repository").await;
    refused(skep.get(&at("nothing")).await, 404, "unknown_path").await;
    refused(skep.get("/api/git/status?path=/etc").await, 403, "path_outside_roots").await;
    let path = repository(&skep, "project");
    git(&path, &["clone", "-q", "--bare", &path, &skep.at("bare.git")]);
    refused(skep.get(&at("bare.git")).await, 409, "bare_repository").await;
    let bare = skep.at("bare.git");
    assert_eq!(get(&skep, "log", &format!("path={bare}")).await["commits"].as_array().unwrap().len(), 1);
    assert_eq!(get(&skep, "diff", &format!("path={bare}&from=HEAD&to=HEAD")).await["files"], json!([]));
    std::fs::write(format!("{path}/.git/index.lock"), "").unwrap();
    let message = refused(send(&skep, "add", json!({"path": path})).await, 409, "repository_locked").await;
    assert!(message.contains("index.lock"), "{message}");
    std::fs::remove_file(format!("{path}/.git/index.lock")).unwrap();
    for verb in ["log?ref=nothing&", "diff?from=nothing&"] {
        let response = skep.get(&format!("/api/git/{verb}path={path}")).await;
        refused(response, 404, "unknown_revision").await;
    }
    refused(send(&skep, "add", json!({"path": path, "files": ["no/such"]})).await, 404, "unknown_path").await;
    let empty = json!({"path": path, "message": " \n"});
    refused(send(&skep, "commit", empty).await, 400, "invalid_value").await;
}

#[tokio::test]
async fn a_repository_of_somebody_else_is_read() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
    std::os::unix::fs::chown(format!("{path}/.git"), Some(12_345), None).unwrap();
    // The control: plain git refuses.
    let (done, output) = try_git(&path, &["status"]);
    assert!(!done && output.contains("dubious ownership"), "{output}");
    assert_eq!(get(&skep, "status", &format!("path={path}")).await["clean"], true);
}

#[tokio::test]
async fn a_diff_ends_at_its_limit() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    // More than is read of the output of other commands of git.
    std::fs::write(format!("{path}/file"), "a line of text that is long enough\n".repeat(2_000_000)).unwrap();
    let diff = get(&skep, "diff", &format!("path={path}")).await;
    assert_eq!(diff["truncated"], true);
    let json = serde_json::to_vec(&diff).unwrap().len();
    assert!(json <= 16 << 20 && json > (16 << 20) - 1_000, "{json}");
    assert_eq!(diff["files"][0]["additions"], 2_000_000);
}

#[tokio::test]
async fn requests_at_once_do_not_harm_a_repository() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let one = async |number: u32| {
        std::fs::write(format!("{path}/{number}"), number.to_string()).unwrap();
        let name = number.to_string();
        post(&skep, "add", json!({"path": path, "files": [name]})).await;
        let made = send(&skep, "commit", json!({"path": path, "message": name})).await;
        // A concurrent request may have committed what this one staged.
        if made.status() != 201 {
            refused(made, 409, "nothing_to_commit").await;
        }
    };
    futures_util::future::join_all((0..12).map(one)).await;
    git(&path, &["fsck", "--strict"]);
    assert_eq!(get(&skep, "status", &format!("path={path}")).await["clean"], true);
    assert_eq!(git(&path, &["ls-files"]).lines().count(), 13);
}
