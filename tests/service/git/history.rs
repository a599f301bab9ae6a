//! Commits that are shown, pages of the log, tags and merges.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{commit, get, git, post, refused, repository, send, try_git};
use crate::harness::Skep;

#[tokio::test]
async fn a_commit_is_shown_with_its_changes_or_one_of_its_files() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let made = commit(&skep, &path, "two\n", "Second").await;
    let shown = get(&skep, "show", &format!("path={path}")).await;
    assert_eq!(shown["commit"], get(&skep, "log", &format!("path={path}&limit=1")).await["commits"][0]);
    assert_eq!((&shown["commit"]["id"], &shown["file"]), (&made["commit"], &Value::Null));
    assert!(shown["changes"]["diff"].as_str().unwrap().contains("-one\n+two\n"), "{shown}");
    // The first commit has no parent, so its files are new.
    let first = get(&skep, "show", &format!("path={path}&ref=HEAD~1")).await;
    assert_eq!(first["changes"]["files"][0]["change"], "added");
    let old = get(&skep, "show", &format!("path={path}&ref=HEAD~1&file=file")).await;
    assert_eq!(
        (&old["file"]["content"], &old["file"]["size_bytes"], &old["changes"]),
        (&json!("one\n"), &json!(4), &Value::Null)
    );
    let none = skep.get(&format!("/api/git/show?path={path}&file=none")).await;
    refused(none, 404, "unknown_path").await;
}

#[tokio::test]
async fn a_page_of_the_log_has_fifty_commits_by_default() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    for number in 0..50 {
        git(&path, &["commit", "-q", "--allow-empty", "-m", &number.to_string()]);
    }
    let page = get(&skep, "log", &format!("path={path}")).await;
    assert_eq!(page["commits"].as_array().unwrap().len(), 50);
    let cursor = page["next_cursor"].as_str().unwrap();
    let last = get(&skep, "log", &format!("path={path}&cursor={cursor}")).await;
    assert_eq!((last["commits"].as_array().unwrap().len(), &last["next_cursor"]), (1, &Value::Null));
    assert_eq!(last["commits"][0]["subject"], "First");
}

#[tokio::test]
async fn tags_are_made_listed_and_deleted() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let second = commit(&skep, &path, "two\n", "Second").await["commit"].clone();
    let first = get(&skep, "log", &format!("path={path}")).await["commits"][1]["id"].clone();
    let noted = json!({"path": path, "name": "noted", "message": "Noted\n\nmore"});
    post(&skep, "tag", noted).await;
    let light = post(&skep, "tag", json!({"path": path, "name": "light", "ref": "HEAD~1"})).await;
    assert_eq!(light, json!({"name": "light", "commit": first, "deleted": false}));
    let expected = json!([
        {"name": "light", "commit": first, "message": null},
        {"name": "noted", "commit": second, "message": "Noted"},
    ]);
    assert_eq!(get(&skep, "tag", &format!("path={path}")).await["tags"], expected);
    let own: Value = skep.get("/api/whoami").await.json().await.unwrap();
    let tagger = git(&path, &["for-each-ref", "--format=%(taggername)", "refs/tags/noted"]);
    assert_eq!(own["key"]["name"], tagger.trim());

    refused(send(&skep, "tag", json!({"path": path, "name": "light"})).await, 409, "already_exists").await;
    refused(send(&skep, "tag", json!({"path": path, "name": "a..b"})).await, 400, "invalid_value").await;
    let delete = json!({"path": path, "name": "light", "delete": true});
    let deleted = post(&skep, "tag", delete.clone()).await;
    assert_eq!(deleted, json!({"name": "light", "commit": first, "deleted": true}));
    refused(send(&skep, "tag", delete).await, 404, "unknown_revision").await;
    assert_eq!(get(&skep, "tag", &format!("path={path}")).await["tags"][0]["name"], "noted");
}

/// A repository whose branch `topic` adds a file, and whose branch `rival` changes `file` in another way than `main` does.
/// Returns its path and the last commit of `main`, which is checked out.
async fn three_branches(skep: &Skep) -> (String, Value) {
    let path = repository(skep, "project");
    git(&path, &["checkout", "-q", "-b", "topic"]);
    fs::write(format!("{path}/other"), "theirs\n").unwrap();
    git(&path, &["add", "."]);
    git(&path, &["commit", "-qm", "Other"]);
    git(&path, &["checkout", "-q", "-b", "rival", "main"]);
    commit(skep, &path, "theirs\n", "Theirs").await;
    git(&path, &["checkout", "-q", "main"]);
    let ours = commit(skep, &path, "ours\n", "Ours").await;
    (path, ours["commit"].clone())
}

#[tokio::test]
async fn a_merge_that_conflicts_names_the_files_and_changes_nothing() {
    let skep = Skep::start().await;
    let (path, ours) = three_branches(&skep).await;
    fs::write(format!("{path}/untracked"), "mine").unwrap();
    let rival = json!({"path": path, "ref": "rival"});
    let message = refused(send(&skep, "merge", rival.clone()).await, 409, "merge_conflict").await;
    assert!(message.contains("Merge conflict in file"), "{message}");
    let status = get(&skep, "status", &format!("path={path}")).await;
    assert_eq!((&status["head"], &status["branch"]), (&ours, &json!("main")));
    for (list, expected) in [
        ("conflicted", json!([])),
        ("staged", json!([])),
        ("modified", json!([])),
        ("untracked", json!([{"path": "untracked"}])),
    ] {
        assert_eq!(status[list], expected, "{list}");
    }
    assert_eq!(fs::read_to_string(format!("{path}/file")).unwrap(), "ours\n");
    assert!(!Path::new(&format!("{path}/.git/MERGE_HEAD")).exists());
    // A merge that was started outside of the API is not aborted.
    assert!(!try_git(&path, &["merge", "-q", "rival"]).0);
    refused(send(&skep, "merge", rival).await, 409, "git_refused").await;
    let status = get(&skep, "status", &format!("path={path}")).await;
    assert_eq!(status["conflicted"][0]["path"], "file", "{status}");
}

/// A merge that runs as a command leaves its conflicts in the work tree, and the diff shows what is left to resolve.
#[tokio::test]
async fn a_file_in_conflict_is_compared_with_the_version_of_the_branch() {
    let skep = Skep::start().await;
    let (path, _) = three_branches(&skep).await;
    assert!(!try_git(&path, &["merge", "-q", "rival"]).0);
    fs::write(format!("{path}/added"), "added\n").unwrap();
    let added = post(&skep, "add", json!({"path": path, "files": ["added"]})).await;
    assert_eq!(added["staged"], json!([{"path": "added", "change": "added", "from": null}]));
    let diff = get(&skep, "diff", &format!("path={path}")).await;
    let expected = json!([
        {"path": "file", "change": "modified", "from": null, "additions": 4, "deletions": 0, "binary": false}
    ]);
    assert_eq!(diff["files"], expected);
    let patch = diff["diff"].as_str().unwrap();
    assert!(patch.contains("\n+<<<<<<< HEAD\n ours\n+=======\n+theirs\n+>>>>>>> rival\n"), "{patch}");
    let staged = get(&skep, "diff", &format!("path={path}&staged=true")).await;
    assert_eq!(staged["files"][0]["path"], "added");
    assert_eq!(staged["files"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn branches_that_do_not_conflict_are_merged() {
    let skep = Skep::start().await;
    let (path, ours) = three_branches(&skep).await;
    let forward = json!({"path": path, "ref": "topic", "ff_only": true});
    refused(send(&skep, "merge", forward).await, 409, "merge_conflict").await;
    refused(send(&skep, "merge", json!({"path": path, "ref": "none"})).await, 404, "unknown_revision").await;
    let merged = post(&skep, "merge", json!({"path": path, "ref": "topic"})).await;
    assert_eq!(
        (&merged["from"], &merged["commits"], &merged["files_changed"]),
        (&ours, &json!(2), &json!(1))
    );
    let shown = get(&skep, "show", &format!("path={path}")).await;
    assert_eq!(
        (&shown["commit"]["id"], &shown["commit"]["subject"]),
        (&merged["to"], &json!("Merge branch 'topic'"))
    );
    assert_eq!(fs::read_to_string(format!("{path}/other")).unwrap(), "theirs\n");
}
