//! HTTP requests of arbitrary clients: every answer has the documented shape.

use std::{fs::File, net::IpAddr, time::Duration};

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use crate::harness::{Answer, Skep, limit_open_files, send, temp_dir};

/// What every answer carries.
#[track_caller]
fn marked(answer: Answer) -> Answer {
    assert!(!answer.headers["x-request-id"].is_empty(), "{answer:?}");
    assert_eq!(answer.headers["skep-version"], "1", "{answer:?}");
    answer
}

/// The message of a refusal of this status.
#[track_caller]
fn refusal(answer: Answer, status: u16, code: &str) -> String {
    marked(answer).refused(status, code).to_owned()
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_while_it_is_read() {
    const CHUNK: usize = 1 << 20;
    let skep = Skep::start().await;
    let json = "content-type: application/json\r\n";
    let declared =
        skep.head("POST /api/files/write", &format!("{json}content-length: {}\r\n", (48 << 20) + 1));
    assert!(refusal(skep.raw(declared).await, 413, "body_too_large").contains("48 MiB"));

    // A client that sends the whole body can still read the answer, without a reset.
    for (framing, size) in [(format!("content-length: {}\r\n", 50 << 20), None), chunked(CHUNK)] {
        let mut wire = skep.raw_connection().await;
        wire.send(skep.head("POST /api/files/write", &format!("{json}{framing}"))).await;
        let chunk = size.unwrap_or_default().into_bytes();
        let chunk = [chunk.as_slice(), &[b' '; CHUNK], if chunk.is_empty() { b"" } else { b"\r\n" }].concat();
        for _ in 0..50 {
            if !wire.send(&chunk).await {
                break;
            }
        }
        let message = refusal(wire.answer().await, 413, "body_too_large");
        assert!(message.contains("48 MiB"), "{framing}: {message}");
    }
}

#[tokio::test]
async fn a_caller_that_sends_more_than_is_read_gets_its_refusal_all_the_same() {
    let skep = Skep::start().await;
    for _ in 0..8 {
        for (request, status, code) in [
            (skep.request(Method::POST, "/api/keys"), 413, "body_too_large"),
            (skep.bare(Method::POST, "/api/keys"), 401, "missing_token"),
            (skep.request(Method::POST, "/api/nothing"), 404, "unknown_route"),
        ] {
            let request = request.header("content-type", "application/json").body(vec![b' '; 50 << 20]);
            refusal(send(request).await, status, code);
        }
    }
}

/// The framing of chunks of this size, and the line before each.
fn chunked(size: usize) -> (String, Option<String>) {
    ("transfer-encoding: chunked\r\n".to_owned(), Some(format!("{size:x}\r\n")))
}

#[tokio::test]
async fn a_body_that_is_framed_wrong_is_refused_in_shape() {
    let skep = Skep::start().await;
    let json = "content-type: application/json\r\n";
    let lengths = format!("{json}content-length: 2\r\ncontent-length: 3\r\n");
    let two = skep.raw(format!("{}{{}} ", skep.head("POST /api/keys", &lengths))).await;
    refusal(two, 400, "malformed_request");
    let chunked = skep.head("POST /api/keys", &format!("{json}transfer-encoding: chunked\r\n"));
    refusal(skep.raw(format!("{chunked}zz\r\n{{}}\r\n0\r\n\r\n")).await, 400, "malformed_body");
}

#[tokio::test]
async fn a_path_that_is_no_utf8_is_400() {
    let skep = Skep::start().await;
    for path in ["/%ff", "/api/%ff", "/api/keys/%c3%28", "/api/swarm/vm/%ff"] {
        let answer = send(skep.request(Method::GET, path)).await;
        assert!(refusal(answer, 400, "malformed_request").contains("UTF-8"), "{path}");
    }
    refusal(skep.raw(b"GET /api/\xff HTTP/1.1\r\nhost: x\r\n\r\n").await, 400, "malformed_request");
}

#[tokio::test]
async fn what_is_no_http_is_refused_in_shape() {
    let skep = Skep::start().await;
    let long = |length: usize| "a".repeat(length);
    for (bytes, status) in [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS greeting\r\n\r\n".to_vec(), 400),
        (b"\0\0\0\0\r\n\r\n".to_vec(), 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n".to_vec(), 400),
        (format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", long(70_000)).into_bytes(), 414),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", long(600_000)).into_bytes(), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(500)).into_bytes(), 431),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let answer = skep.raw(&bytes).await;
        assert_eq!(answer.status.as_u16(), status, "{shown}: {answer:?}");
        refusal(answer, status, "malformed_request");
    }
    skep.get("/api/whoami").await.ok(200);
}

#[tokio::test]
async fn head_is_get_without_a_body_and_options_is_refused_with_the_allowed_methods() {
    let skep = Skep::start().await;
    for (path, status) in [("/api/health", 200), ("/api/whoami", 200), ("/api/nothing", 404)] {
        let answer = match path {
            "/api/health" => skep.health_answer(Method::HEAD).await,
            _ => send(skep.request(Method::HEAD, path)).await,
        };
        let answer = marked(answer);
        assert_eq!(answer.status.as_u16(), status, "{path}: {answer:?}");
        assert_eq!(answer.body, "", "{path}");
        assert_eq!(answer.headers["content-type"], "application/json", "{path}");
    }
    for (path, allowed) in [("/api/health", "GET"), ("/api/keys", "POST"), ("/api/swarm/boot", "POST")] {
        let answer = send(skep.request(Method::OPTIONS, path)).await;
        assert!(answer.headers["allow"].to_str().unwrap().contains(allowed), "{path}: {answer:?}");
        refusal(answer, 405, "method_not_allowed");
    }
}

#[tokio::test]
async fn a_key_counts_however_bearer_is_spelled() {
    let skep = Skep::start().await;
    let with = async |value: String| {
        send(skep.bare(Method::GET, "/api/whoami").header("authorization", value)).await
    };
    for scheme in ["Bearer ", "bearer ", "BEARER    ", "bEaReR\t "] {
        with(format!("{scheme}{}", skep.key)).await.ok(200);
    }
    for value in ["", "  "] {
        assert_eq!(refusal(with(value.to_owned()).await, 401, "missing_token"), "Missing token");
    }
    for value in ["Bearer", &skep.key, &format!("Basic {}", skep.key), &format!("Bearer {}0", skep.key)] {
        assert_eq!(refusal(with(value.to_owned()).await, 401, "invalid_token"), "Invalid token");
    }
    let twice = skep.request(Method::GET, "/api/whoami").header("authorization", "Bearer other");
    assert!(refusal(send(twice).await, 400, "malformed_request").contains("Authorization"));
}

#[tokio::test]
async fn every_answer_carries_an_id_of_its_own_and_the_version() {
    let skep = Skep::start().await;
    let mut ids = Vec::new();
    for path in
        ["/", "/api", "/api/health", "/api/health?x=1", "/api/nothing", "/api/whoami", "/api/openapi.json"]
    {
        for request in [skep.request(Method::GET, path), skep.bare(Method::POST, path)] {
            let answer = marked(send(request).await);
            ids.push(answer.headers["x-request-id"].to_str().unwrap().to_owned());
        }
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

/// Every operation of the document: method, path, description.
async fn operations(skep: &Skep) -> Vec<(Method, String, Value)> {
    let document = send(skep.bare(Method::GET, "/api/openapi.json")).await.ok(200);
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = method.to_uppercase().parse().unwrap();
            operations.push((method, path.clone(), operation.clone()));
        }
    }
    assert!(operations.len() >= 15, "{}", operations.len());
    operations
}

#[tokio::test]
async fn every_operation_of_the_document_is_there_and_knows_its_parameters() {
    let skep = Skep::start().await;
    for (method, path, _) in operations(&skep).await {
        let named = path.replace("{pid}", "2199023255552").replace("{id}", "key_none");
        // With an unknown parameter nothing happens but the refusal.
        let answer = send(skep.request(method.clone(), &format!("{named}?bogus=1"))).await;
        let message = refusal(answer, 400, "unknown_field");
        assert!(message.contains("`bogus`"), "{method} {path}: {message}");
    }
}

#[tokio::test]
async fn every_operation_says_what_it_refuses_and_which_scope_it_needs() {
    let skep = Skep::start().await;
    for (method, path, operation) in operations(&skep).await {
        let lists = |status: &str| operation["responses"].get(status).is_some();
        assert!(lists("400") && lists("500"), "{method} {path}: {operation}");
        let security = operation["security"].as_array().unwrap();
        let scopes = security.iter().find_map(|one| one["bearer"].as_array());
        assert_eq!(scopes.is_some(), lists("401"), "{method} {path}: {operation}");
        // What is public may still have come in a way that is not safe.
        let codes = operation["responses"]["403"]["headers"]["Skep-Error"]["schema"]["enum"].as_array();
        let expires = codes.unwrap().iter().any(|code| code == "token_expired");
        assert_eq!(scopes.is_some(), expires, "{method} {path}: {operation}");
        let without = send(skep.bare(method.clone(), &path)).await;
        assert_eq!(scopes.is_some(), without.status == 401, "{method} {path}: {without:?}");
        let any_key = ["/api/whoami", "/api/session", "/api/session/links"].contains(&path.as_str());
        assert_eq!(scopes.is_some_and(|scopes| scopes.is_empty()), any_key, "{method} {path}");
        if path.contains('{') {
            assert!(lists("404"), "{method} {path}: {operation}");
        }
    }
}

#[tokio::test]
async fn an_address_with_all_the_connections_that_it_may_have_leaves_files_to_another() {
    let skep = Skep::start_as(temp_dir(), |command| limit_open_files(command, 1_024)).await;
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    File::create(format!("{root}/large")).unwrap().set_len(32 << 20).unwrap();
    let other = skep.tenant("other").await;
    // Each connection of this address has a socket and an open file.
    let head =
        skep.head(&format!("GET /api/files/read?path={root}/large"), "accept: application/octet-stream\r\n");
    let mut unread = Vec::new();
    for _ in 0..600 {
        let mut connection = skep.raw_connection().await;
        connection.send(&head).await;
        unread.push(connection);
    }
    let elsewhere = Client::builder().local_address(IpAddr::from([127, 0, 0, 2])).build().unwrap();
    let answered = async |request: RequestBuilder, status| {
        send(request.bearer_auth(&other.key).timeout(Duration::from_secs(60))).await.ok(status)
    };
    let whoami = answered(elsewhere.get(format!("{}/api/whoami", skep.url)), 200).await;
    let folder = whoami["roots"][0].as_str().unwrap();
    let write = json!({"path": format!("{folder}/file"), "content": "hello"});
    answered(elsewhere.post(format!("{}/api/files/write", skep.url)).json(&write), 201).await;
    let listed = answered(elsewhere.get(format!("{}/api/ls?path={folder}", skep.url)), 200).await;
    assert_eq!(listed["entries"][0]["name"], "file", "{listed}");
    let init = json!({"path": format!("{folder}/repository")});
    answered(elsewhere.post(format!("{}/api/git/init", skep.url)).json(&init), 201).await;
    assert!(skep.log().contains("--max-connections"), "{}", skep.log());
}
