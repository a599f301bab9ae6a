//! Pushes to a git server, and pulls and clones from it.

use serde_json::{Value, json};

use super::{get, git, post, remote::Remote, tokens, write};
use crate::{
    files::fixture::Fixture,
    harness::{Skep, step, temp_dir},
    webhooks::https::Authority,
};

#[tokio::test]
async fn what_a_vm_pushes_and_pulls_goes_through_the_server() {
    let remote = Remote::start();
    let authority = Authority::new("of git hosts");
    let (_folder, trusted) = authority.file();
    let skep = Skep::start_as(temp_dir(), |command| {
        command.args(["--git-allow", "127.0.0.1"]).env("SSL_CERT_FILE", &trusted);
    })
    .await;
    let booted = skep.post("/api/swarm/boot", &json!({"egress": {"allow": ["127.0.0.1"]}})).await.ok(201);
    let vm = booted["vms"][0]["pid"].as_u64().unwrap();
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

pub(super) async fn sends_and_fetches(fixture: &Fixture<'_>, remote: &Remote) {
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
pub(super) async fn shallow_clones(fixture: &Fixture<'_>, remote: &Remote) {
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
pub(super) async fn diverged_branches(fixture: &Fixture<'_>, remote: &Remote) {
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

pub(super) async fn what_is_refused(fixture: &Fixture<'_>, remote: &Remote) {
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
