//! Limits on the size and the duration of JSON bodies.

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::wire::{answer, connect};
use crate::harness::{Skep, refused};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// An operation of each limit, in bytes.
const LIMITS: &[(&str, &str, usize, &str)] = &[
    ("POST", "/api/files/write", 48 * MIB, "48 MiB"),
    ("POST", "/api/exec", 48 * MIB, "48 MiB"),
    ("POST", "/api/swarm/vm/1/exec", 48 * MIB, "48 MiB"),
    ("POST", "/api/tickets/batch", 16 * MIB, "16 MiB"),
    ("POST", "/api/git/add", 16 * MIB, "16 MiB"),
    ("PATCH", "/api/tickets/tkt_01jv0000000000000000000000", 2 * MIB, "2 MiB"),
    ("POST", "/api/tickets", MIB, "1 MiB"),
    ("POST", "/api/keys", MIB, "1 MiB"),
    ("POST", "/api/swarm/boot", MIB, "1 MiB"),
    ("POST", "/api/admin/restart", MIB, "1 MiB"),
    ("POST", "/api/waitlist", 16 * KIB, "16 KiB"),
];

fn head(skep: &Skep, method: &str, path: &str, framing: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n{framing}\r\n\r\n",
        skep.admin
    )
}

fn is_too_large(found: &str, what: &str) {
    assert!(found.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{what}: {found}");
    assert!(found.contains("\r\nskep-error: body_too_large\r\n"), "{what}: {found}");
    assert!(found.contains(what), "{what}: {found}");
}

#[tokio::test]
async fn a_declared_length_over_the_limit_is_refused_before_anything_is_read() {
    let skep = Skep::start().await;
    for (method, path, limit, text) in LIMITS {
        let mut stream = connect(skep.address).await;
        let framing = format!("content-length: {}", limit + 1);
        stream.write_all(head(&skep, method, path, &framing).as_bytes()).await.unwrap();
        is_too_large(&answer(&mut stream).await, &format!("larger than {text};"));
    }
}

#[tokio::test]
async fn chunks_are_counted_while_they_are_read() {
    let skep = Skep::start().await;
    for (method, path, limit, text) in LIMITS {
        let (mut reading, mut writing) = connect(skep.address).await.into_split();
        writing.write_all(head(&skep, method, path, "transfer-encoding: chunked").as_bytes()).await.unwrap();
        let chunk = [format!("{:x}\r\n", limit / 16).as_bytes(), &vec![b' '; limit / 16], b"\r\n"].concat();
        let sending = async {
            for _ in 0..17 {
                // The answer comes before the last chunk.
                let _ = writing.write_all(&chunk).await;
            }
            std::future::pending::<()>().await;
        };
        let found = tokio::select! {
            found = answer(&mut reading) => found,
            () = sending => unreachable!(),
        };
        is_too_large(&found, &format!("larger than {text};"));
    }
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_read() {
    let skep = Skep::start().await;
    for (method, path, limit, _) in LIMITS {
        if *path == "/api/admin/restart" {
            continue;
        }
        // One long string is parsed faster than the same number of spaces.
        let body = format!("{{\"unheard_of\": \"{}\"}}", "x".repeat(limit - 18));
        assert_eq!(body.len(), *limit);
        let request = skep.request(method.parse().unwrap(), path).header("content-type", "application/json");
        let found = refused(request.body(body).send().await.unwrap()).await;
        assert_eq!((found.status, found.code.as_str()), (400, "unknown_field"), "{path}: {}", found.message);
    }
}

#[tokio::test]
async fn what_would_grow_in_memory_is_counted_before_it_is_parsed() {
    let skep = Skep::start().await;
    for (what, values, status) in [
        ("numbers", "1,".repeat(300_000) + "1", 413),
        ("lists", "[1],".repeat(150_000) + "1", 413),
        ("objects", "{},".repeat(150_000) + "1", 413),
        ("depth", "[".repeat(200_000), 400),
        ("texts", format!("\"{}\"", ",[{".repeat(100_000)), 400),
    ] {
        for path in ["/api/git/add", "/api/tickets/batch"] {
            let body = format!("{{\"unheard_of\": [{values}]}}");
            let found = refused(skep.post(path, &body).await).await;
            assert_eq!(found.status, status, "{what}, {path}: {}", found.message);
            assert!(status != 413 || found.message.contains("250000 values"), "{}", found.message);
        }
    }
}

/// Malformed and oversized requests do not count towards the limit of five per hour.
#[tokio::test]
async fn requests_refused_for_their_body_do_not_count_towards_the_waitlist_limit() {
    let skep = Skep::start().await;
    let join = async |body: String| {
        let request = skep.bare(Method::POST, "/api/waitlist").header("content-type", "application/json");
        request.body(body).send().await.unwrap().status()
    };
    for _ in 0..4 {
        for body in ["{", "[]", "{\"email\": 7}", "{\"email\": \"x\"}", "{\"email\": \"a@b.org\", \"x\": 1}"]
        {
            assert_eq!(join(body.to_owned()).await, StatusCode::BAD_REQUEST);
        }
        assert_eq!(join(" ".repeat(16 * KIB + 1)).await, StatusCode::PAYLOAD_TOO_LARGE);
    }
    assert_eq!(join("{\"email\": \"ada@example.com\"}".to_owned()).await, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn the_document_names_the_limits() {
    let skep = Skep::start().await;
    let document: Value = skep.get("/api/openapi.json").await.json().await.unwrap();
    for (method, path, _, text) in LIMITS {
        let path = path.replace("/vm/1/", "/vm/{pid}/").replace("tkt_01jv0000000000000000000000", "{id}");
        let operation = &document["paths"][&path][method.to_ascii_lowercase()];
        assert!(operation.is_object(), "{path}");
        // This operation has no documented body.
        if let Some(body) = operation.get("requestBody") {
            let description = body["description"].as_str().unwrap();
            assert!(description.ends_with(&format!("At most {text}.")), "{path}: {description}");
        }
    }
    let raw = &document["paths"]["/api/files/raw"]["put"]["requestBody"];
    assert!(!raw["description"].as_str().unwrap_or_default().contains("At most"), "{raw}");
}

#[tokio::test]
async fn a_connection_goes_on_behind_a_body_that_was_too_large_by_little() {
    let skep = Skep::start().await;
    let mut stream = connect(skep.address).await;
    for _ in 0..3 {
        let framing = format!("content-length: {}", 16 * KIB + 1);
        stream.write_all(head(&skep, "POST", "/api/waitlist", &framing).as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; 16 * KIB + 1]).await.unwrap();
        is_too_large(&answer(&mut stream).await, "16 KiB");
    }
    stream.write_all(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut found = String::new();
    stream.read_to_string(&mut found).await.unwrap();
    assert!(found.starts_with("HTTP/1.1 200 "), "{found}");
}
