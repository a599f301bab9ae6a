//! Commits and files that are shown, tags, merges, remotes, in both places.

use serde_json::{Value, json};

use super::{get, git, paths, post, write};
use crate::{files::fixture::Fixture, harness::Answer};

pub(super) async fn tags_merges_and_remotes(fixture: &Fixture<'_>) {
    shown(fixture).await;
    tags(fixture).await;
    merges(fixture).await;
    remotes(fixture).await;
    git(fixture, "work", "reset -q --hard HEAD~3").await;
}

/// About the repository `work`, whatever the answer is.
async fn send(fixture: &Fixture<'_>, verb: &str, mut body: Value) -> Answer {
    body["path"] = json!(fixture.at("work"));
    fixture.post(&format!("/api/git/{verb}"), &body).await
}

async fn shown(fixture: &Fixture<'_>) {
    let shown = get(fixture, "show", "work", &[]).await;
    assert_eq!(
        shown["commit"],
        get(fixture, "log", "work", &[("limit", "1")]).await["commits"][0],
        "{fixture:?}"
    );
    assert!(shown["changes"]["diff"].as_str().unwrap().contains("-two\n+2\n"), "{shown}");
    let first = get(fixture, "show", "work", &[("ref", "HEAD~1")]).await;
    assert_eq!(first["changes"]["files"][0]["change"], "added", "the first commit");
    let file = get(fixture, "show", "work", &[("ref", "HEAD~1"), ("file", "src/a file")]).await;
    assert_eq!((&file["file"]["content"], &file["file"]["size_bytes"]), (&json!("one\ntwo\n"), &json!(8)));
    let none = fixture.get("/api/git/show", "work", &[("file", "none")]).await;
    none.refused(404, "unknown_path");
}

async fn tags(fixture: &Fixture<'_>) {
    post(fixture, "tag", json!({"path": "work", "name": "light", "ref": "HEAD~1"}), 200).await;
    post(fixture, "tag", json!({"path": "work", "name": "noted", "message": "Noted\n\nmore"}), 200).await;
    let tags = get(fixture, "tag", "work", &[]).await["tags"].clone();
    assert_eq!((&tags[0]["name"], &tags[0]["message"]), (&json!("light"), &Value::Null));
    assert_eq!(
        (&tags[1]["message"], &tags[1]["commit"]),
        (&json!("Noted"), &get(fixture, "log", "work", &[]).await["commits"][0]["id"])
    );
    send(fixture, "tag", json!({"name": "light"})).await.refused(409, "already_exists");
    send(fixture, "tag", json!({"name": "a..b"})).await.refused(400, "invalid_value");
    post(fixture, "tag", json!({"path": "work", "name": "light", "delete": true}), 200).await;
    send(fixture, "tag", json!({"name": "light", "delete": true})).await.refused(404, "unknown_revision");
}

async fn merges(fixture: &Fixture<'_>) {
    // Both sides change other files, then the same one.
    write(fixture, "work/contested", "ours\n").await;
    post(fixture, "add", json!({"path": "work"}), 200).await;
    post(fixture, "commit", json!({"path": "work", "message": "Ours"}), 201).await;
    send(fixture, "merge", json!({"ref": "topic", "ff_only": true})).await.refused(409, "merge_conflict");
    let merged = post(fixture, "merge", json!({"path": "work", "ref": "topic"}), 200).await;
    let merge = get(fixture, "show", "work", &[]).await;
    assert_eq!(
        (&merge["commit"]["id"], &merge["commit"]["subject"]),
        (&merged["to"], &json!("Merge branch 'topic'"))
    );
    git(fixture, "work", "checkout -q -b rival HEAD~1").await;
    write(fixture, "work/contested", "theirs\n").await;
    git(fixture, "work", "commit -qam Theirs").await;
    git(fixture, "work", "checkout -q main").await;
    write(fixture, "work/contested", "ours again\n").await;
    post(fixture, "commit", json!({"path": "work", "message": "Ours again", "all": true}), 201).await;
    let refused = send(fixture, "merge", json!({"ref": "rival"})).await;
    assert!(refused.refused(409, "merge_conflict").contains("Merge conflict in contested"), "{fixture:?}");
    assert_eq!(get(fixture, "status", "work", &[]).await["clean"], true, "{fixture:?}");
    send(fixture, "merge", json!({"ref": "nothing"})).await.refused(404, "unknown_revision");
    // A merge that was started by hand is not aborted.
    git(fixture, "work", "merge -q rival || true").await;
    send(fixture, "merge", json!({"ref": "rival"})).await.refused(409, "git_refused");
    assert_eq!(paths(&get(fixture, "status", "work", &[]).await["conflicted"]), ["contested"]);
    git(fixture, "work", "merge --abort").await;
}

async fn remotes(fixture: &Fixture<'_>) {
    post(fixture, "init", json!({"path": "hub.git", "bare": true}), 201).await;
    post(fixture, "remote", json!({"path": "work", "name": "hub", "url": "../hub.git"}), 200).await;
    send(fixture, "remote", json!({"name": "hub", "url": "../hub.git"})).await.refused(409, "already_exists");
    send(fixture, "remote", json!({"name": "bad", "url": "ext::sh -c id"}))
        .await
        .refused(403, "remote_forbidden");
    send(fixture, "remote", json!({"name": "nobody", "remove": true})).await.refused(404, "unknown_remote");
    send(fixture, "remote", json!({"name": "hub"})).await.refused(400, "invalid_value");
    post(fixture, "push", json!({"path": "work", "remote": "hub"}), 200).await;
    git(fixture, "hub.git", "branch other main~1").await;
    let fetched = post(fixture, "fetch", json!({"path": "work", "remote": "hub"}), 200).await;
    let names: Vec<_> = fetched["changed"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["hub/other"], "{fixture:?}");
    git(fixture, "hub.git", "branch -D other").await;
    let pruned = post(fixture, "fetch", json!({"path": "work", "remote": "hub", "prune": true}), 200).await;
    assert_eq!(
        (&pruned["changed"][0]["name"], &pruned["changed"][0]["to"]),
        (&json!("hub/other"), &Value::Null)
    );
    post(fixture, "remote", json!({"path": "work", "name": "hub", "url": "/nowhere", "replace": true}), 200)
        .await;
    assert_eq!(
        get(fixture, "remote", "work", &[]).await["remotes"],
        json!([{"name": "hub", "url": "/nowhere", "push_url": null}])
    );
    post(fixture, "remote", json!({"path": "work", "name": "hub", "remove": true}), 200).await;
}
