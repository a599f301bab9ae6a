//! File operations over HTTP: requests and answers. Their semantics are tested in the crate `workspace`.

use std::{
    os::unix::fs::{MetadataExt, chown},
    time::{Duration, SystemTime},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use skep_api::Scope;

use crate::harness::Skep;

/// The message of a refusal with this status and code.
async fn refused(response: reqwest::Response, status: u16, code: &str) -> String {
    let refused = crate::harness::refused(response).await;
    assert_eq!((refused.status, refused.code.as_str()), (status, code), "{}", refused.message);
    refused.message
}

async fn write(skep: &Skep, name: &str, content: &str) -> reqwest::Response {
    let body = json!({"path": skep.at(name), "content": content});
    skep.request(Method::POST, "/api/files/write").json(&body).send().await.unwrap()
}

async fn read(skep: &Skep, name: &str) -> reqwest::Response {
    skep.get(&format!("/api/files/read?path={}", skep.at(name))).await
}

#[tokio::test]
async fn what_is_written_is_read_listed_found_and_removed() {
    let skep = Skep::start().await;
    assert_eq!(write(&skep, "src/main.rs", "fn main() {}\n").await.status(), StatusCode::CREATED);
    assert_eq!(write(&skep, "src/main.rs", "fn main() { begin() }\n").await.status(), StatusCode::OK);
    let content: Value = read(&skep, "src/main.rs").await.json().await.unwrap();
    assert_eq!(content["content"], "fn main() { begin() }\n");
    assert_eq!(
        (&content["encoding"], &content["size_bytes"], &content["truncated"]),
        (&json!("utf-8"), &json!(22), &json!(false))
    );
    let page: Value = skep.get(&format!("/api/ls?path={}", skep.at("src"))).await.json().await.unwrap();
    let entry = &page["entries"][0];
    assert_eq!(
        (&entry["name"], &entry["type"], &entry["mode"]),
        (&json!("main.rs"), &json!("file"), &json!("0644"))
    );
    let found: Value =
        skep.get(&format!("/api/files/search?path={}&pattern=*.rs", skep.at(""))).await.json().await.unwrap();
    assert_eq!((found["matches"].as_array().unwrap().len(), &found["syntax"]), (1, &json!("glob")));
    let lines: Value =
        skep.get(&format!("/api/files/grep?path={}&pattern=begin", skep.at(""))).await.json().await.unwrap();
    assert_eq!((&lines["matches"][0]["line"], &lines["matches"][0]["column"]), (&json!(1), &json!(13)));
    let removed =
        skep.request(Method::DELETE, &format!("/api/files?path={}", skep.at("src"))).send().await.unwrap();
    assert_eq!(removed.json::<Value>().await.unwrap()["removed"], 2);
    refused(read(&skep, "src/main.rs").await, 404, "unknown_path").await;
}

#[tokio::test]
async fn an_entry_has_the_size_owner_and_time_of_its_file() {
    let skep = Skep::start().await;
    write(&skep, "folder/file", "content").await;
    let (folder, path) = (skep.at("folder"), skep.at("folder/file"));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(12_345), Some(12_346)).unwrap();
    }
    let owner = file.metadata().unwrap();
    let (size, time) = (json!(7), json!("2023-11-14T22:13:20.123Z"));
    let page: Value = skep.get(&format!("/api/ls?path={folder}")).await.json().await.unwrap();
    let entry = &page["entries"][0];
    assert_eq!((&entry["path"], &entry["size_bytes"], &entry["modified_at"]), (&json!(path), &size, &time));
    assert_eq!((&entry["uid"], &entry["gid"]), (&json!(owner.uid()), &json!(owner.gid())));
    let search = format!("/api/files/search?path={folder}&pattern=file");
    let found: Value = skep.get(&search).await.json().await.unwrap();
    let found = &found["matches"][0];
    assert_eq!((&found["path"], &found["size_bytes"], &found["modified_at"]), (&json!(path), &size, &time));
    let content: Value = read(&skep, "folder/file").await.json().await.unwrap();
    assert_eq!((&content["size_bytes"], &content["modified_at"]), (&size, &time));
}

#[tokio::test]
async fn lists_of_files_have_their_defaults_and_bounds() {
    let skep = Skep::start().await;
    let many = skep.at("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..1_001 {
        std::fs::write(format!("{many}/f-{number}"), "").unwrap();
    }
    std::fs::write(format!("{many}/.dot"), "").unwrap();
    let ask = async |route: &str, query: &str| skep.get(&format!("/api/{route}?path={many}{query}")).await;
    let count = |list: &Value| list.as_array().unwrap().len();
    let page: Value = ask("ls", "").await.json().await.unwrap();
    assert_eq!((count(&page["entries"]), &page["entries"][0]["name"]), (1_000, &json!(".dot")));
    let next = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
    let page: Value = ask("ls", &next).await.json().await.unwrap();
    assert_eq!((count(&page["entries"]), &page["next_cursor"]), (2, &json!(null)));
    for (query, matches, truncated) in [
        ("&pattern=f-*", 1_000, true),
        ("&pattern=f-*&limit=1001", 1_001, false),
        ("&pattern=.dot", 1, false),
        ("&pattern=.dot&hidden=false", 0, false),
    ] {
        let found: Value = ask("files/search", query).await.json().await.unwrap();
        assert_eq!((count(&found["matches"]), &found["truncated"]), (matches, &json!(truncated)), "{query}");
    }
    for (route, query, name) in [
        ("ls", "&limit=0", "`limit`"),
        ("ls", "&limit=1001", "`limit`"),
        ("files/search", "&pattern=x&limit=0", "`limit`"),
        ("files/search", "&pattern=x&limit=10001", "`limit`"),
        ("files/grep", "&pattern=x&limit=10001", "`limit`"),
        ("files/grep", "&pattern=x&context=101", "`context`"),
    ] {
        let message = refused(ask(route, query).await, 400, "invalid_value").await;
        assert!(message.contains(name), "{route} {query}: {message}");
    }
}

#[tokio::test]
async fn folders_are_made_and_files_moved_and_copied() {
    let skep = Skep::start().await;
    for status in [StatusCode::CREATED, StatusCode::OK] {
        let made = skep.request(Method::POST, "/api/mkdir").json(&json!({"path": skep.at("a/b")}));
        assert_eq!(made.send().await.unwrap().status(), status);
    }
    write(&skep, "a/b/file", "content").await;
    for (verb, from, to) in [("copy", "a/b/file", "copy"), ("move", "a", "moved")] {
        let body = json!({"from": skep.at(from), "to": skep.at(to)});
        let done =
            skep.request(Method::POST, &format!("/api/files/{verb}")).json(&body).send().await.unwrap();
        assert_eq!(done.status(), StatusCode::OK, "{verb}");
    }
    for name in ["copy", "moved/b/file"] {
        assert_eq!(read(&skep, name).await.json::<Value>().await.unwrap()["content"], "content");
    }
}

#[tokio::test]
async fn links_are_created_and_do_not_lead_out_of_the_roots() {
    let skep = Skep::start().await;
    write(&skep, "file", "content").await;
    write(&skep, "folder/file", "content").await;
    let link = async |name: &str, more: Value| {
        let mut body = json!({"path": skep.at(name), "target": "file"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        skep.request(Method::POST, "/api/files/link").json(&body).send().await.unwrap()
    };
    assert_eq!(link("link", json!({})).await.status(), StatusCode::CREATED);
    assert_eq!(read(&skep, "link").await.json::<Value>().await.unwrap()["content"], "content");
    refused(link("link", json!({})).await, 409, "already_exists").await;
    let replaced = link("link", json!({"target": "/etc/passwd", "overwrite": true})).await;
    assert_eq!(replaced.status(), StatusCode::OK);
    refused(read(&skep, "link").await, 403, "path_outside_roots").await;
    // A link does not replace a folder, and its parent folder must exist.
    refused(link("folder", json!({"overwrite": true})).await, 409, "not_a_file").await;
    refused(link("nowhere/link", json!({})).await, 404, "unknown_path").await;
    refused(link("link/below", json!({})).await, 403, "path_outside_roots").await;
    for target in ["", "a\0b"] {
        refused(link("other", json!({"target": target})).await, 400, "invalid_value").await;
    }
    let odd = link("odd", json!({"path_encoding": "percent", "target": "%FF"})).await;
    assert_eq!(odd.json::<Value>().await.unwrap()["target"], "%FF");
    let page: Value = skep.get(&format!("/api/ls?path={}", skep.at(""))).await.json().await.unwrap();
    let entries = page["entries"].as_array().unwrap();
    let odd = entries.iter().find(|entry| entry["name"] == "odd").unwrap();
    assert_eq!((&odd["target"], &odd["target_encoding"]), (&json!("%FF"), &json!("percent")));
    assert!(entries.iter().all(|entry| !entry["name"].as_str().unwrap().starts_with(".skep-")), "{page}");
}

#[tokio::test]
async fn a_tag_holds_for_one_content() {
    let skep = Skep::start().await;
    let tag = write(&skep, "file", "one").await.json::<Value>().await.unwrap()["etag"].clone();
    let conditional = async |name: &'static str, value: &str| {
        let body = json!({"path": skep.at("file"), "content": "two"});
        let request = skep.request(Method::POST, "/api/files/write").header(name, value).json(&body);
        request.send().await.unwrap()
    };
    refused(conditional("if-none-match", "*").await, 412, "precondition_failed").await;
    assert_eq!(conditional("if-match", tag.as_str().unwrap()).await.status(), StatusCode::OK);
    refused(conditional("if-match", tag.as_str().unwrap()).await, 412, "precondition_failed").await;
    refused(conditional("if-none-match", "\"tag\"").await, 400, "invalid_value").await;
}

#[tokio::test]
async fn wrong_requests_are_refused_by_name() {
    let skep = Skep::start().await;
    write(&skep, "binary", "x").await;
    std::fs::write(skep.at("binary"), [0xff]).unwrap();
    for (query, status, code, name) in [
        ("path=relative".to_owned(), 400, "invalid_value", "`path`"),
        ("limit=1".to_owned(), 400, "missing_parameter", "`path`"),
        (format!("path={}&limit=0", skep.at("binary")), 400, "invalid_value", "`limit`"),
        (format!("path={}&encoding=klingon", skep.at("binary")), 400, "invalid_value", "klingon"),
        (format!("path={}", skep.at("binary")), 422, "not_text", "encoding=base64"),
        (format!("path={}", skep.at("")), 409, "not_a_file", "directory"),
        ("path=/etc/hostname".to_owned(), 403, "path_outside_roots", "/etc/hostname"),
        (format!("path={}", skep.at("../../skep.db")), 403, "path_outside_roots", "skep.db"),
        (format!("path={}&vm=NOTHING", skep.at("binary")), 404, "unknown_vm", "NOTHING"),
    ] {
        let message = refused(skep.get(&format!("/api/files/read?{query}")).await, status, code).await;
        assert!(message.contains(name), "{query}: {message}");
    }
    // Set-user-ID and set-group-ID bits cannot be set.
    for mode in ["4755", "2755", "6755", "07777", "10000", "8", ""] {
        let body = json!({"path": skep.at("new"), "content": "x", "mode": mode}).to_string();
        let message = refused(skep.post("/api/files/write", &body).await, 400, "invalid_value").await;
        assert!(message.contains(&format!("`{mode}`")), "{message}");
    }
    let body = json!({"path": skep.at("new"), "content": "x", "mode": "1755"}).to_string();
    assert_eq!(skep.post("/api/files/write", &body).await.status(), 201);
}

#[tokio::test]
async fn a_pager_ends_where_the_file_does() {
    let skep = Skep::start().await;
    write(&skep, "file", "0123456789").await;
    for limit in [1, 3, 5, 10, 11] {
        let (mut text, mut pages) = (String::new(), 0);
        loop {
            let query = format!("path={}&offset={}&limit={limit}", skep.at("file"), text.len());
            let page: Value = skep.get(&format!("/api/files/read?{query}")).await.json().await.unwrap();
            text.push_str(page["content"].as_str().unwrap());
            pages += 1;
            if page["truncated"] == false {
                break;
            }
            assert!(pages < 20, "limit {limit}: there is no end");
        }
        assert_eq!((text.as_str(), pages), ("0123456789", 10_usize.div_ceil(limit)), "limit {limit}");
    }
}

#[tokio::test]
async fn a_search_for_nothing_is_refused() {
    let skep = Skep::start().await;
    for (route, query, field) in [
        ("search", "pattern=", "`pattern`"),
        ("search", "pattern=&syntax=regex", "`pattern`"),
        ("grep", "pattern=", "`pattern`"),
        ("grep", "pattern=x&glob=", "`glob`"),
    ] {
        let answer = skep.get(&format!("/api/files/{route}?path={}&{query}", skep.at(""))).await;
        let message = refused(answer, 400, "invalid_value").await;
        assert!(message.contains(field), "{route} {query}: {message}");
    }
}

#[tokio::test]
async fn moving_and_copying_require_read_and_write_scopes() {
    let skep = Skep::start().await;
    write(&skep, "file", "secret").await;
    let body = json!({"from": skep.at("file"), "to": skep.at("other"), "overwrite": true});
    for verb in ["copy", "move"] {
        let with = async |scopes: &[Scope]| {
            let (key, _) = skep.key(scopes).await;
            let request = skep.bare(Method::POST, &format!("/api/files/{verb}")).bearer_auth(key);
            request.json(&body).send().await.unwrap()
        };
        for (has, lacks) in [(Scope::FilesRead, "files:write"), (Scope::FilesWrite, "files:read")] {
            let message = refused(with(&[has]).await, 403, "scope_missing").await;
            assert!(message.contains(lacks), "{verb}: {message}");
        }
        assert_eq!(with(&[Scope::FilesRead, Scope::FilesWrite]).await.status(), StatusCode::OK, "{verb}");
    }
}

#[tokio::test]
async fn each_call_has_its_scope_and_its_account() {
    let skep = Skep::start().await;
    write(&skep, "file", "mine").await;
    let (reader, _) = skep.key(&[Scope::FilesRead]).await;
    let path = format!("/api/files/read?path={}", skep.at("file"));
    assert_eq!(
        skep.bare(Method::GET, &path).bearer_auth(&reader).send().await.unwrap().status(),
        StatusCode::OK
    );
    let removal =
        skep.bare(Method::DELETE, &format!("/api/files?path={}", skep.at("file"))).bearer_auth(&reader);
    refused(removal.send().await.unwrap(), 403, "scope_missing").await;
    let made = skep.request(Method::POST, "/api/accounts").json(&json!({"name": "acme"}));
    let acme: Value = made.send().await.unwrap().json().await.unwrap();
    let body = json!({"name": "theirs", "role": "agent", "account": acme["id"]});
    let key: Value =
        skep.request(Method::POST, "/api/keys").json(&body).send().await.unwrap().json().await.unwrap();
    let foreign = skep.bare(Method::GET, &path).bearer_auth(key["key"].as_str().unwrap());
    refused(foreign.send().await.unwrap(), 403, "path_outside_roots").await;
}
