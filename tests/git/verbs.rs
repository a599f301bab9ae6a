//! Commits and files that are shown, tags, merges, remotes, in both places.

use serde_json::{Value, json};

use super::{get, git, paths, post, write};
use crate::{files::ground::Ground, harness::Answer};

pub(super) async fn tags_merges_and_remotes(ground: &Ground<'_>) {
    shown(ground).await;
    tags(ground).await;
    merges(ground).await;
    remotes(ground).await;
    git(ground, "work", "reset -q --hard HEAD~3").await;
}

/// About the repository `work`, whatever the answer is.
async fn send(ground: &Ground<'_>, verb: &str, mut body: Value) -> Answer {
    body["path"] = json!(ground.at("work"));
    ground.post(&format!("/api/git/{verb}"), &body).await
}

async fn shown(ground: &Ground<'_>) {
    let shown = get(ground, "show", "work", &[]).await;
    assert_eq!(
        shown["commit"],
        get(ground, "log", "work", &[("limit", "1")]).await["commits"][0],
        "{ground:?}"
    );
    assert!(shown["changes"]["diff"].as_str().unwrap().contains("-two\n+2\n"), "{shown}");
    let first = get(ground, "show", "work", &[("ref", "HEAD~1")]).await;
    assert_eq!(first["changes"]["files"][0]["change"], "added", "the first commit");
    let file = get(ground, "show", "work", &[("ref", "HEAD~1"), ("file", "src/a file")]).await;
    assert_eq!((&file["file"]["content"], &file["file"]["size_bytes"]), (&json!("one\ntwo\n"), &json!(8)));
    let none = ground.get("/api/git/show", "work", &[("file", "none")]).await;
    none.refused(404, "unknown_path");
}

async fn tags(ground: &Ground<'_>) {
    post(ground, "tag", json!({"path": "work", "name": "light", "ref": "HEAD~1"}), 200).await;
    post(ground, "tag", json!({"path": "work", "name": "noted", "message": "Noted\n\nmore"}), 200).await;
    let tags = get(ground, "tag", "work", &[]).await["tags"].clone();
    assert_eq!((&tags[0]["name"], &tags[0]["message"]), (&json!("light"), &Value::Null));
    assert_eq!(
        (&tags[1]["message"], &tags[1]["commit"]),
        (&json!("Noted"), &get(ground, "log", "work", &[]).await["commits"][0]["id"])
    );
    send(ground, "tag", json!({"name": "light"})).await.refused(409, "already_exists");
    send(ground, "tag", json!({"name": "a..b"})).await.refused(400, "invalid_value");
    post(ground, "tag", json!({"path": "work", "name": "light", "delete": true}), 200).await;
    send(ground, "tag", json!({"name": "light", "delete": true})).await.refused(404, "unknown_revision");
}

async fn merges(ground: &Ground<'_>) {
    // Both sides change other files, then the same one.
    write(ground, "work/contested", "ours\n").await;
    post(ground, "add", json!({"path": "work"}), 200).await;
    post(ground, "commit", json!({"path": "work", "message": "Ours"}), 201).await;
    send(ground, "merge", json!({"ref": "topic", "ff_only": true})).await.refused(409, "merge_conflict");
    let merged = post(ground, "merge", json!({"path": "work", "ref": "topic"}), 200).await;
    let merge = get(ground, "show", "work", &[]).await;
    assert_eq!(
        (&merge["commit"]["id"], &merge["commit"]["subject"]),
        (&merged["to"], &json!("Merge branch 'topic'"))
    );
    git(ground, "work", "checkout -q -b rival HEAD~1").await;
    write(ground, "work/contested", "theirs\n").await;
    git(ground, "work", "commit -qam Theirs").await;
    git(ground, "work", "checkout -q main").await;
    write(ground, "work/contested", "ours again\n").await;
    post(ground, "commit", json!({"path": "work", "message": "Ours again", "all": true}), 201).await;
    let refused = send(ground, "merge", json!({"ref": "rival"})).await;
    assert!(refused.refused(409, "merge_conflict").contains("Merge conflict in contested"), "{ground:?}");
    assert_eq!(get(ground, "status", "work", &[]).await["clean"], true, "{ground:?}");
    send(ground, "merge", json!({"ref": "nothing"})).await.refused(404, "unknown_revision");
    // A merge that was started by hand is not aborted.
    git(ground, "work", "merge -q rival || true").await;
    send(ground, "merge", json!({"ref": "rival"})).await.refused(409, "git_refused");
    assert_eq!(paths(&get(ground, "status", "work", &[]).await["conflicted"]), ["contested"]);
    git(ground, "work", "merge --abort").await;
}

async fn remotes(ground: &Ground<'_>) {
    post(ground, "init", json!({"path": "hub.git", "bare": true}), 201).await;
    post(ground, "remote", json!({"path": "work", "name": "hub", "url": "../hub.git"}), 200).await;
    send(ground, "remote", json!({"name": "hub", "url": "../hub.git"})).await.refused(409, "already_exists");
    send(ground, "remote", json!({"name": "bad", "url": "ext::sh -c id"}))
        .await
        .refused(403, "remote_forbidden");
    send(ground, "remote", json!({"name": "nobody", "remove": true})).await.refused(404, "unknown_remote");
    send(ground, "remote", json!({"name": "hub"})).await.refused(400, "invalid_value");
    post(ground, "push", json!({"path": "work", "remote": "hub"}), 200).await;
    git(ground, "hub.git", "branch other main~1").await;
    let fetched = post(ground, "fetch", json!({"path": "work", "remote": "hub"}), 200).await;
    let names: Vec<_> = fetched["changed"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["hub/other"], "{ground:?}");
    git(ground, "hub.git", "branch -D other").await;
    let pruned = post(ground, "fetch", json!({"path": "work", "remote": "hub", "prune": true}), 200).await;
    assert_eq!(
        (&pruned["changed"][0]["name"], &pruned["changed"][0]["to"]),
        (&json!("hub/other"), &Value::Null)
    );
    post(ground, "remote", json!({"path": "work", "name": "hub", "url": "/nowhere", "replace": true}), 200)
        .await;
    assert_eq!(
        get(ground, "remote", "work", &[]).await["remotes"],
        json!([{"name": "hub", "url": "/nowhere", "push_url": null}])
    );
    post(ground, "remote", json!({"path": "work", "name": "hub", "remove": true}), 200).await;
}
