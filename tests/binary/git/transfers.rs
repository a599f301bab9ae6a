//! Clones, pulls, fetches and pushes between the workspace and VMs.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{get, git, post, write};
use crate::{
    files::fixture::Fixture,
    harness::{Skep, send},
};

#[tokio::test]
async fn a_clone_between_places_goes_through_the_server() {
    let skep = Skep::start().await;
    let vm = skep.boot_one().await;
    let (here, inside) = (Fixture::on_the_server(&skep).await, Fixture::in_vm(&skep, vm).await);
    a_source(&here).await;
    let clone = async |body: &Value| skep.post("/api/git/clone", body).await;
    let vm = json!(vm);

    // Into the VM, which has no network; what it commits goes back, and what is new there comes.
    let cloned = json!({"url": here.at("source"), "from": "server", "path": inside.at("work"), "vm": vm});
    let made = clone(&cloned).await.ok(201);
    assert_eq!((&made["branch"], &made["path"]), (&json!("main"), &json!(inside.at("work"))));
    assert_eq!(inside.read("work/file", &[]).await.ok(200)["content"], "one\n");
    let branches = get(&inside, "branch", "work", &[("remote", "true")]).await;
    let names: Vec<_> = branches["branches"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["main", "origin/main", "origin/topic"]);
    assert_eq!(git(&inside, "work", "tag").await, "v1");
    clone(&cloned).await.refused(409, "already_exists");
    post(&inside, "checkout", json!({"path": "work", "ref": "fix", "create": true}), 200).await;
    let fix = a_commit(&inside, "work", "fix").await;
    let pushed = post(&inside, "push", json!({"path": "work", "set_upstream": true}), 200).await;
    assert_eq!((&pushed["created"], &pushed["to"]), (&json!(true), &fix));
    assert_eq!(git(&here, "source", "rev-parse fix").await, fix.as_str().unwrap());
    // The branch that is checked out there is not pushed over.
    post(&inside, "checkout", json!({"path": "work", "ref": "main"}), 200).await;
    a_commit(&inside, "work", "more").await;
    let body = json!({"path": inside.at("work"), "vm": vm});
    skep.post("/api/git/push", &body).await.refused(409, "push_rejected");
    post(&inside, "reset", json!({"path": "work", "to": "origin/main", "mode": "hard"}), 200).await;
    let theirs = a_commit(&here, "source", "theirs").await;
    git(&here, "source", "branch -D topic").await;
    let fetched = post(&inside, "fetch", json!({"path": "work", "prune": true}), 200).await;
    let names: Vec<_> = fetched["changed"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(
        (names, &fetched["changed"][0]["to"]),
        (vec![&json!("origin/main"), &json!("origin/topic")], &theirs)
    );
    let pulled = post(&inside, "pull", json!({"path": "work"}), 200).await;
    assert_eq!((&pulled["to"], &pulled["commits"]), (&theirs, &json!(1)));

    let other = out_of_the_vm(&skep, &here, &inside, &vm).await;
    limited_keys(&skep, &here, &inside, &vm).await;
    the_other_vm_is_unknown(&skep, &inside, &vm, &other).await;
    refused_clones(&skep, &here, &inside, &vm).await;
}

/// Also clones from the VM into another one, and returns that one.
async fn out_of_the_vm(skep: &Skep, here: &Fixture<'_>, inside: &Fixture<'_>, vm: &Value) -> Value {
    let clone = async |body: &Value| skep.post("/api/git/clone", body).await;
    let back = json!({"url": inside.at("work"), "from": vm, "path": here.at("back"), "branch": "fix"});
    assert_eq!(
        clone(&back).await.ok(201)["head"],
        get(inside, "log", "work", &[("ref", "fix")]).await["commits"][0]["id"]
    );
    git(here, "back", "fsck --strict").await;
    post(inside, "checkout", json!({"path": "work", "ref": "fix"}), 200).await;
    let theirs_too = a_commit(inside, "work", "again").await;
    assert_eq!(post(here, "pull", json!({"path": "back"}), 200).await["to"], theirs_too);
    post(inside, "checkout", json!({"path": "work", "ref": "main"}), 200).await;
    let ours = a_commit(here, "back", "ours").await;
    assert_eq!(post(here, "push", json!({"path": "back"}), 200).await["to"], ours);
    assert_eq!(git(inside, "work", "rev-parse fix").await, ours.as_str().unwrap());
    assert_eq!(post(here, "fetch", json!({"path": "back"}), 200).await["changed"], json!([]));
    let other = json!(skep.boot_one().await);
    let across =
        json!({"url": inside.at("work"), "from": vm, "path": "/root/across", "vm": other, "depth": 1});
    assert_eq!(
        clone(&across).await.ok(201)["head"],
        get(inside, "log", "work", &[]).await["commits"][0]["id"]
    );
    other
}

async fn a_source(here: &Fixture<'_>) {
    post(here, "init", json!({"path": "source"}), 201).await;
    write(here, "source/file", "one\n").await;
    a_commit(here, "source", "first").await;
    git(here, "source", "branch topic").await;
    git(here, "source", "tag v1").await;
}

async fn a_commit(fixture: &Fixture<'_>, name: &str, file: &str) -> Value {
    write(fixture, &format!("{name}/{file}"), file).await;
    post(fixture, "add", json!({"path": name}), 200).await;
    post(fixture, "commit", json!({"path": name, "message": file}), 201).await["commit"].clone()
}

/// A key that is bound to the VM, and one that may not read.
async fn limited_keys(skep: &Skep, here: &Fixture<'_>, inside: &Fixture<'_>, vm: &Value) {
    let of_vm = json!({"name": "of-vm", "role": "vm", "vm": vm});
    let writes = json!({"name": "writes", "scopes": ["git:write", "swarm:exec"]});
    let into_vm = json!({"url": here.at("source"), "from": "server", "path": "/root/taken", "vm": vm});
    let out_of_vm = json!({"url": inside.at("work"), "from": vm, "path": here.at("taken")});
    let pull = json!({"path": inside.at("work"), "vm": vm});
    let calls =
        [("clone", &into_vm), ("clone", &out_of_vm), ("pull", &pull), ("fetch", &pull), ("push", &pull)];
    // The other key may push: that reads nothing on the server.
    for (key, code, calls) in [(of_vm, "vm_key_limited", &calls[..]), (writes, "scope_missing", &calls[..4])]
    {
        let made = skep.post("/api/keys", &key).await.ok(201);
        let secret = made["key"].as_str().unwrap();
        for (verb, body) in calls {
            let request = skep.bare(Method::POST, &format!("/api/git/{verb}"));
            send(request.bearer_auth(secret).json(body)).await.refused(403, code);
        }
    }
}

/// A key that is bound to a VM gets the same answers about another VM as about one that does not exist.
async fn the_other_vm_is_unknown(skep: &Skep, inside: &Fixture<'_>, vm: &Value, other: &Value) {
    let made = skep.post("/api/keys", &json!({"name": "bound", "role": "vm", "vm": vm})).await.ok(201);
    let id = skep.get(&format!("/api/swarm/vm/{other}")).await.ok(200)["id"].clone();
    let names = [other.clone(), id, json!("vm_00000000000000000000000000"), json!(4_000_000_000_u32)];
    for (verb, field, body) in [
        ("clone", "from", json!({"url": "/root/across", "path": inside.at("taken"), "vm": vm})),
        ("clone", "vm", json!({"url": inside.at("work"), "path": "/root/taken", "from": vm})),
        ("pull", "vm", json!({"path": "/root/across"})),
        ("push", "vm", json!({"path": "/root/across"})),
        ("fetch", "vm", json!({"path": "/root/across"})),
        ("commit", "vm", json!({"path": "/root/across", "message": "x"})),
    ] {
        let mut messages = BTreeSet::new();
        for name in &names {
            let mut body = body.clone();
            body[field] = name.clone();
            let request = skep.bare(Method::POST, &format!("/api/git/{verb}"));
            let answer = send(request.bearer_auth(made["key"].as_str().unwrap()).json(&body)).await;
            let text = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
            messages.insert(answer.refused(404, "unknown_vm").replace(&text, "VM"));
        }
        assert_eq!(messages.len(), 1, "{verb} {field}: {messages:?}");
    }
    // The control: the account's own key reaches it.
    skep.post("/api/git/fetch", &json!({"path": "/root/across", "vm": other})).await.ok(200);
}

async fn refused_clones(skep: &Skep, here: &Fixture<'_>, inside: &Fixture<'_>, vm: &Value) {
    let into = |url: &str, from: Option<&str>| json!({"url": url, "from": from, "path": inside.at("refused"), "vm": vm});
    let clone = |body: Value| async move { skep.post("/api/git/clone", &body).await };
    let mut body = into("https://127.0.0.1/x", None);
    body.as_object_mut().unwrap().remove("from");
    clone(body.clone()).await.refused(403, "remote_forbidden");
    body["url"] = json!("git://git.example.com/x");
    clone(body.clone()).await.refused(403, "remote_forbidden");
    clone(into(&here.at("missing"), Some("server"))).await.refused(404, "unknown_path");
    clone(into("/etc", Some("server"))).await.refused(403, "path_outside_roots");
    clone(into(&here.at("source"), Some("nobody"))).await.refused(404, "unknown_vm");
    clone(into("https://git.example.com/x", Some("server"))).await.refused(400, "invalid_value");
    let mut body = into(&here.at("source"), Some("server"));
    body["branch"] = json!("nothing");
    clone(body).await.refused(404, "unknown_revision");
    // A remote in a VM leads where its repository says, and no further than the account's roots.
    for (url, status, code) in [
        ("skep://server/etc", 403, "path_outside_roots"),
        ("skep://nobody/root/x", 404, "unknown_vm"),
        ("skep://server", 403, "remote_forbidden"),
    ] {
        git(inside, "work", &format!("remote set-url origin {url}")).await;
        let body = json!({"path": inside.at("work"), "vm": vm, "branch": "main"});
        skep.post("/api/git/pull", &body).await.refused(status, code);
        skep.post("/api/git/push", &body).await.refused(status, code);
    }
    assert_eq!(inside.shell("ls -d refused 2>/dev/null || echo none").await, "none");
}
