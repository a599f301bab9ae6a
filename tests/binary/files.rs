//! File operations in the server's workspace and in a VM: the same tests in both places, with the same answers.

pub(crate) mod fixture;
mod lost_updates;
mod refusals;
mod streams;
mod thorough;

use std::os::unix::fs::chown;

use serde_json::{Value, json};

use crate::harness::{send, step};
use fixture::{Fixture, in_both_places};

#[tokio::test(flavor = "multi_thread")]
async fn files_are_the_same_on_the_server_and_in_a_vm() {
    in_both_places(async |fixture| {
        step("reads and writes", reads_and_writes(fixture)).await;
        step("owners", owners(fixture)).await;
        step("conditions", conditions(fixture)).await;
        step("pages", pages(fixture)).await;
        step("searches", searches(fixture)).await;
        step("folders", folders(fixture)).await;
        step("writers with one tag", lost_updates::races(fixture)).await;
        step("streams of bytes", streams::bytes(fixture)).await;
    })
    .await;
}

async fn reads_and_writes(fixture: &Fixture<'_>) {
    let written = fixture.write(&json!({"path": fixture.at("new/a.txt"), "content": "grün\n"})).await.ok(201);
    assert_eq!((&written["created"], &written["size_bytes"]), (&json!(true), &json!(6)), "{fixture:?}");
    let replaced = fixture
        .write(&json!({"path": fixture.at("new/a.txt"), "content": "grün", "mode": "0640"}))
        .await
        .ok(200);
    assert_eq!(replaced["created"], false);
    let read = fixture.read("new/a.txt", &[]).await.ok(200);
    assert_eq!(
        (&read["content"], &read["etag"], &read["truncated"]),
        (&json!("grün"), &replaced["etag"], &json!(false))
    );
    assert_eq!(fixture.shell("stat -c %a new/a.txt").await, "640");
    // The mode is kept when the content is replaced.
    fixture.write(&json!({"path": fixture.at("new/a.txt"), "content": "blau"})).await.ok(200);
    assert_eq!(fixture.shell("stat -c %a new/a.txt").await, "640");
    let added = json!({"path": fixture.at("new/a.txt"), "content": " rot", "append": true});
    assert_eq!(fixture.write(&added).await.ok(200)["size_bytes"], 8);
    let window = fixture.read("new/a.txt", &[("offset", "2"), ("limit", "3")]).await.ok(200);
    assert_eq!(
        (&window["content"], &window["size_bytes"], &window["truncated"]),
        (&json!("au "), &json!(8), &json!(true))
    );
    assert_eq!(fixture.read("new/a.txt", &[("offset", "900")]).await.ok(200)["content"], "");
    for (encoding, content) in [("base64", "YmxhdQ=="), ("hex", "626c6175"), ("utf-16le", "\u{6c62}\u{7561}")]
    {
        let query = [("encoding", encoding), ("limit", "4")];
        assert_eq!(fixture.read("new/a.txt", &query).await.ok(200)["content"], content, "{encoding}");
    }
    for (encoding, content, bytes) in [
        ("base64", "/wA=", "ff00"),
        ("hex", "00ff", "00ff"),
        ("utf-16be", "ü", "00fc"),
        ("latin1", "ü", "fc"),
    ] {
        let body = json!({"path": fixture.at("new/b"), "content": content, "encoding": encoding});
        fixture.write(&body).await;
        let read = fixture.read("new/b", &[("encoding", "hex")]).await.ok(200);
        assert_eq!(read["content"], bytes, "{encoding}");
    }
    let nowhere = json!({"path": fixture.at("none/x"), "content": "", "create_parents": false});
    fixture.write(&nowhere).await.refused(404, "unknown_path");
}

/// A write keeps the owner of the file that it replaces. Root in a VM may do so; the server's user may not, and is refused.
async fn owners(fixture: &Fixture<'_>) {
    fixture.shell("mkdir owned; echo old > owned/file").await;
    let (owner, content) = if fixture.vm.is_some() { (1000, "new") } else { (0, "old") };
    if fixture.vm.is_some() {
        fixture.shell("chown 1000:1000 owned/file").await;
    } else {
        chown(fixture.at("owned/file"), Some(owner), Some(owner)).unwrap();
    }
    let written = fixture.write(&json!({"path": fixture.at("owned/file"), "content": "new"})).await;
    let uploaded = send(streams::put(fixture, "owned/file", &[]).body("new")).await;
    for answer in [written, uploaded] {
        if fixture.vm.is_some() {
            answer.ok(200);
        } else {
            answer.refused(403, "permission_denied");
        }
    }
    let found = fixture.shell("echo $(cat owned/file) $(stat -c %u:%g owned/file) $(ls -A owned)").await;
    assert_eq!(found, format!("{content} {owner}:{owner} file"), "{fixture:?}");
}

async fn conditions(fixture: &Fixture<'_>) {
    let body = json!({"path": fixture.at("tagged"), "content": "x"});
    let first = fixture.write_if(&body, "If-None-Match", "*").await.ok(201)["etag"].clone();
    let first = first.as_str().unwrap();
    fixture.write_if(&body, "If-None-Match", "*").await.refused(412, "precondition_failed");
    let second = fixture.write_if(&body, "If-Match", first).await.ok(200)["etag"].clone();
    assert_ne!(second, first);
    fixture.write_if(&body, "If-Match", first).await.refused(412, "precondition_failed");
    fixture.write_if(&body, "If-Match", &format!("\"no\", {}", second.as_str().unwrap())).await.ok(200);
    let absent = json!({"path": fixture.at("untagged"), "content": "x"});
    fixture.write_if(&absent, "If-Match", "*").await.refused(412, "precondition_failed");
}

async fn pages(fixture: &Fixture<'_>) {
    fixture.shell("mkdir many; cd many; for n in $(seq 10 34); do echo $n > f$n; done; ln -s f10 link").await;
    let (mut names, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let mut query = vec![("limit", "10")];
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = fixture.get("/api/ls", "many", &query).await.ok(200);
        let entries = page["entries"].as_array().unwrap().clone();
        assert!(entries.len() <= 10);
        names.extend(entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => {
                let last = entries.last().unwrap();
                assert_eq!((&last["type"], &last["target"]), (&json!("symlink"), &json!("f10")));
                break;
            }
        }
    }
    let expected: Vec<String> = (10..35).map(|n| format!("f{n}")).chain(["link".to_owned()]).collect();
    assert_eq!(names, expected, "{fixture:?}");
}

async fn searches(fixture: &Fixture<'_>) {
    fixture.shell("mkdir -p s/.git s/src/deep; echo 'fn main() {}' > s/src/main.rs; echo zwei > s/src/deep/x.rs; echo '*.log' > s/.gitignore; echo log > s/a.log").await;
    let found = async |query: &[(&str, &str)]| -> Vec<String> {
        let answer = fixture.get("/api/files/search", "s", query).await.ok(200);
        let names = answer["matches"].as_array().unwrap().iter();
        let below = fixture.at("s/");
        names.map(|found| found["path"].as_str().unwrap().strip_prefix(&below).unwrap().to_owned()).collect()
    };
    assert_eq!(found(&[("pattern", "*.rs")]).await, ["src/deep/x.rs", "src/main.rs"]);
    assert_eq!(found(&[("pattern", "src/*.rs")]).await, ["src/main.rs"]);
    assert_eq!(found(&[("pattern", "^src/.*\\.rs$")]).await, ["src/deep/x.rs", "src/main.rs"]);
    assert_eq!(
        found(&[("pattern", "*"), ("type", "directory"), ("hidden", "false")]).await,
        ["src", "src/deep"]
    );
    assert_eq!(found(&[("pattern", "*.log")]).await, ["a.log"]);
    assert!(found(&[("pattern", "*.log"), ("gitignore", "true")]).await.is_empty());
    let grep = async |query: &[(&str, &str)]| -> Value {
        fixture.get("/api/files/grep", "s", query).await.ok(200)["matches"].clone()
    };
    let lines = grep(&[("pattern", "ma[i]n"), ("glob", "*.rs")]).await;
    assert_eq!((&lines[0]["line"], &lines[0]["column"], &lines[1]), (&json!(1), &json!(4), &Value::Null));
    assert_eq!(grep(&[("pattern", "zwei|log")]).await.as_array().unwrap().len(), 3);
}

async fn folders(fixture: &Fixture<'_>) {
    let make = json!({"path": fixture.at("d/e"), "mode": "0750"});
    assert_eq!(fixture.post("/api/mkdir", &make).await.ok(201)["created"], true);
    assert_eq!(fixture.post("/api/mkdir", &make).await.ok(200)["created"], false);
    assert_eq!(fixture.shell("stat -c %a d/e").await, "750");
    fixture.shell("echo eins > d/e/file; ln -s file d/e/link").await;
    let both = |from: &str, to: &str| json!({"from": fixture.at(from), "to": fixture.at(to)});
    fixture.post("/api/files/copy", &both("d", "copy")).await.ok(200);
    assert_eq!(fixture.shell("cat copy/e/file; readlink copy/e/link").await, "eins\nfile");
    fixture.post("/api/files/move", &both("d", "moved")).await.ok(200);
    fixture.post("/api/files/move", &both("moved", "copy")).await.refused(409, "already_exists");
    fixture.post("/api/files/copy", &both("moved", "moved/in")).await.refused(409, "already_exists");
    fixture.remove("moved", &[("recursive", "false")]).await.refused(409, "not_empty");
    assert_eq!(fixture.remove("moved", &[]).await.ok(200)["removed"], 4);
    assert_eq!(fixture.remove("copy/e/link", &[]).await.ok(200)["type"], "symlink");
    assert_eq!(fixture.shell("cat copy/e/file; ls").await.lines().next(), Some("eins"));
    fixture.read("moved/e/file", &[]).await.refused(404, "unknown_path");
}
