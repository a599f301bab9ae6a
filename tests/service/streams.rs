//! Files as byte streams, over HTTP.

use std::{io, time::Duration};

use futures_util::{StreamExt, stream};
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use skep_api::Scope;
use skep_store::RevokeKey;
use tokio::time::timeout;

use crate::harness::{Skep, refused};

const MIB: usize = 1 << 20;

fn raw(skep: &Skep, name: &str) -> RequestBuilder {
    let path = format!("/api/files/read?path={}", skep.at(name));
    skep.request(Method::GET, &path).header("accept", "application/octet-stream")
}

fn put(skep: &Skep, name: &str) -> RequestBuilder {
    skep.request(Method::PUT, &format!("/api/files/raw?path={}", skep.at(name)))
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 251 + at) as u8).collect()
}

async fn code(request: RequestBuilder) -> (u16, String) {
    let refused = refused(request.send().await.unwrap()).await;
    (refused.status, refused.code)
}

#[tokio::test]
async fn bytes_go_in_and_come_out_whole_and_in_parts() {
    let skep = Skep::start().await;
    // Larger than the limit of JSON bodies.
    let bytes = pattern(50 * MIB);
    let made = skep.request(Method::PUT, &format!("/api/files/raw?path={}&mode=0600", skep.at("deep/file")));
    let made = made.body(bytes.clone()).send().await.unwrap();
    assert_eq!(made.status(), StatusCode::CREATED);
    let made: Value = made.json().await.unwrap();
    assert_eq!((&made["size_bytes"], &made["created"]), (&Value::from(bytes.len()), &Value::Bool(true)));
    let whole = raw(&skep, "deep/file").send().await.unwrap();
    assert_eq!(whole.status(), StatusCode::OK);
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        ("x-content-type-options", "nosniff"),
        ("content-disposition", "attachment"),
        ("accept-ranges", "bytes"),
        ("cache-control", "no-store"),
        ("content-length", &bytes.len().to_string()),
        ("etag", made["etag"].as_str().unwrap()),
    ] {
        assert_eq!(header(&whole, name), value, "{name}");
    }
    assert!(header(&whole, "last-modified").ends_with(" GMT"));
    assert!(whole.bytes().await.unwrap() == bytes, "the bytes differ");
    let tag = made["etag"].as_str().unwrap();
    for (range, if_range, status, expected) in [
        ("bytes=0-0", None, 206, 0..1),
        ("bytes=1000000-", None, 206, 1_000_000..bytes.len()),
        ("bytes=-300000", None, 206, bytes.len() - 300_000..bytes.len()),
        ("bytes=5-4000005", Some(tag), 206, 5..4_000_006),
        ("bytes=5-9", Some("\"another\""), 200, 0..bytes.len()),
        ("bytes=5-9,11-12", None, 200, 0..bytes.len()),
    ] {
        let mut request = raw(&skep, "deep/file").header("range", range);
        if let Some(tag) = if_range {
            request = request.header("if-range", tag);
        }
        let part = request.send().await.unwrap();
        assert_eq!(part.status().as_u16(), status, "{range}");
        if status == 206 {
            let content_range = format!("bytes {}-{}/{}", expected.start, expected.end - 1, bytes.len());
            assert_eq!(header(&part, "content-range"), content_range);
        }
        assert!(part.bytes().await.unwrap() == bytes[expected], "{range}");
    }
    let beyond = raw(&skep, "deep/file").header("range", "bytes=99999999-").send().await.unwrap();
    assert_eq!(header(&beyond, "content-range"), format!("bytes */{}", bytes.len()));
    assert_eq!(refused(beyond).await.code, "range_not_satisfiable");
}

#[tokio::test]
async fn the_accept_header_chooses_the_media_type() {
    let skep = Skep::start().await;
    put(&skep, "file").body("text").send().await.unwrap();
    put(&skep, "empty").body("").send().await.unwrap();
    assert_eq!(raw(&skep, "empty").send().await.unwrap().bytes().await.unwrap(), "");
    for (accept, expected) in [
        ("*/*", "application/json"),
        ("application/octet-stream, application/json;q=0.5", "application/octet-stream"),
        ("application/octet-stream;q=0.4, application/json;q=0.5", "application/json"),
    ] {
        let request = skep.request(Method::GET, &format!("/api/files/read?path={}", skep.at("file")));
        let answer = request.header("accept", accept).send().await.unwrap();
        assert_eq!(header(&answer, "content-type"), expected, "{accept}");
    }
    let image = skep.request(Method::GET, &format!("/api/files/read?path={}", skep.at("file")));
    assert_eq!(code(image.header("accept", "image/png")).await, (406, "not_acceptable".to_owned()));
    let both = skep.request(Method::GET, &format!("/api/files/read?path={}&offset=1", skep.at("file")));
    let both = both.header("accept", "application/octet-stream");
    assert_eq!(code(both).await, (400, "invalid_value".to_owned()));
    assert_eq!(code(raw(&skep, "none")).await, (404, "unknown_path".to_owned()));
    assert_eq!(code(raw(&skep, "")).await, (409, "not_a_file".to_owned()));
}

fn names(skep: &Skep) -> Vec<String> {
    let entries = std::fs::read_dir(skep.at("")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_upload_holds_to_its_conditions_until_its_end() {
    let skep = Skep::start().await;
    let tag = put(&skep, "file").body("one").send().await.unwrap().json::<Value>().await.unwrap();
    let tag = tag["etag"].as_str().unwrap().to_owned();
    let absent = put(&skep, "file").header("if-none-match", "*").body("x");
    assert_eq!(code(absent).await, (412, "precondition_failed".to_owned()));
    // The precondition holds at the beginning, and not at the end.
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let body = stream::once(async { Ok::<_, io::Error>("begin") }).chain(stream::once(async {
        gone.await.unwrap();
        Ok("end")
    }));
    let late = put(&skep, "file").header("if-match", &tag).body(Body::wrap_stream(body)).send();
    let late = tokio::spawn(late);
    until(|| names(&skep).len() == 2).await;
    std::fs::write(skep.at("file"), "meanwhile").unwrap();
    go.send(()).unwrap();
    assert_eq!(refused(late.await.unwrap().unwrap()).await.code, "precondition_failed");
    assert_eq!(names(&skep), ["file"]);
    assert_eq!(std::fs::read(skep.at("file")).unwrap(), b"meanwhile");
}

async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to that");
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing() {
    let skep = Skep::start().await;
    put(&skep, "file").body("old").send().await.unwrap();
    let endless = stream::once(async { Ok::<_, io::Error>(pattern(MIB)) }).chain(stream::pending());
    let upload = tokio::spawn(put(&skep, "file").body(Body::wrap_stream(endless)).send());
    until(|| names(&skep).len() == 2).await;
    upload.abort();
    until(|| names(&skep).len() == 1).await;
    assert_eq!(std::fs::read(skep.at("file")).unwrap(), b"old");
    // An incomplete body must not become a shorter file.
    let broken = stream::iter([Ok("half"), Err(io::Error::other("cut"))]);
    assert!(put(&skep, "file").body(Body::wrap_stream(broken)).send().await.is_err());
    until(|| names(&skep).len() == 1).await;
    assert_eq!(std::fs::read(skep.at("file")).unwrap(), b"old");
}

/// An answer has the length of its `Content-Length`, or it is aborted: it never looks like a complete shorter file.
#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_no_other_file() {
    let skep = Skep::start().await;
    let bytes = pattern(64 * MIB);
    for what in ["shrinks", "grows", "vanishes", "is replaced"] {
        std::fs::write(skep.at("file"), &bytes).unwrap();
        let mut answer = raw(&skep, "file").send().await.unwrap();
        let mut came = answer.chunk().await.unwrap().unwrap().to_vec();
        match what {
            "shrinks" => {
                std::fs::File::options().write(true).open(skep.at("file")).unwrap().set_len(5).unwrap()
            }
            "grows" => {
                let mut file = std::fs::File::options().append(true).open(skep.at("file")).unwrap();
                io::Write::write_all(&mut file, &bytes).unwrap();
            }
            "vanishes" => std::fs::remove_file(skep.at("file")).unwrap(),
            _ => drop(put(&skep, "file").body("new").send().await.unwrap()),
        }
        let broke = loop {
            match answer.chunk().await {
                Ok(Some(chunk)) => came.extend_from_slice(&chunk),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        assert_eq!(broke, what == "shrinks", "{what}");
        assert!(bytes.starts_with(&came) && (broke || came.len() == bytes.len()), "{what}");
    }
}

#[tokio::test]
async fn a_key_that_is_revoked_ends_its_streams() {
    let skep = Skep::start().await;
    let sparse = std::fs::File::create(skep.at("sparse")).unwrap();
    sparse.set_len(10 << 40).unwrap();
    let (key, record) = skep.key(&[Scope::FilesRead]).await;
    let get = |path: &str| skep.bare(Method::GET, path).bearer_auth(&key);
    let file = get(&format!("/api/files/read?path={}", skep.at("sparse")));
    let mut file = file.header("accept", "application/octet-stream").send().await.unwrap();
    assert_eq!(header(&file, "content-length"), (10_u64 << 40).to_string());
    let mut watch = get(&format!("/api/files/watch?path={}", skep.at(""))).send().await.unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    file.chunk().await.unwrap().unwrap();
    revoke(&skep, &record).await;
    while let Ok(Some(_)) = file.chunk().await {}
    let mut received = String::new();
    while let Some(chunk) = watch.chunk().await.unwrap() {
        received.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(received.contains("event: error") && received.contains("token_expired"), "{received}");
}

async fn revoke(skep: &Skep, record: &skep_store::KeyRecord) {
    let at = jiff::Timestamp::now();
    let command = RevokeKey { account: skep.account.id, id: record.key.id, at, request_id: None };
    skep.store.revoke_key(command).await.unwrap();
}

/// Reads from a watch until all these changes have come.
async fn receive_changes(watch: &mut Response, received: &mut String, changes: &[String]) {
    while !changes.iter().all(|change| received.contains(change)) {
        let part = timeout(Duration::from_secs(60), watch.chunk()).await;
        let part = part.unwrap_or_else(|_| panic!("not all of {changes:?} are reported: {received}"));
        received.push_str(std::str::from_utf8(&part.unwrap().unwrap()).unwrap());
    }
}

#[tokio::test]
async fn a_watch_tells_what_the_api_does() {
    let skep = Skep::start().await;
    let mut watch = skep.get(&format!("/api/files/watch?path={}", skep.at(""))).await;
    assert!(header(&watch, "content-type").starts_with("text/event-stream"));
    let change = |kind: &str, name: &str| {
        format!("event: change\ndata: {{\"type\":\"{kind}\",\"path\":\"{}\"}}", skep.at(name))
    };
    let mut received = String::new();
    // A new folder is watched a moment after it was created, so each request waits for the change of the one before.
    put(&skep, "new/file").body("one").send().await.unwrap();
    receive_changes(&mut watch, &mut received, &[change("created", "new"), change("created", "new/file")])
        .await;
    put(&skep, "new/file").body("two").send().await.unwrap();
    receive_changes(&mut watch, &mut received, &[change("modified", "new/file")]).await;
    skep.request(Method::DELETE, &format!("/api/files?path={}", skep.at("new"))).send().await.unwrap();
    receive_changes(&mut watch, &mut received, &[change("deleted", "new/file"), change("deleted", "new")])
        .await;
    assert!(!received.contains(".skep-"), "{received}");
}

#[tokio::test]
async fn an_account_watches_only_so_many_folders() {
    let skep = Skep::start().await;
    let path = format!("/api/files/watch?path={}", skep.at(""));
    let mut open = Vec::new();
    let refusal = loop {
        let answer = skep.get(&path).await;
        if answer.status() != StatusCode::OK {
            break refused(answer).await;
        }
        open.push(answer);
    };
    assert_eq!((refusal.status, refusal.code.as_str(), open.len()), (409, "watch_limit", 32));
    open.clear();
    for _ in 0..3_000 {
        if skep.get(&path).await.status() == StatusCode::OK {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("who left still has a place");
}
