//! A repository whose settings name programs, in the workspace and in a VM. In the control, plain git starts one.

use serde_json::{Value, json};

use super::{get, git, write};
use crate::files::fixture::{Fixture, in_both_places};

#[tokio::test]
async fn a_hostile_repository_starts_nothing_in_either_place() {
    in_both_places(hostile).await;
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
