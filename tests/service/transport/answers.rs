//! Answers arrive unchanged, whatever their bytes are.

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::wire::{LAST, ROOT, answer, answers, connect, exchange};
use crate::harness::Skep;

/// The size of the pieces in which downloads are read from the disk, in bytes.
const PIECE: usize = 256 << 10;

/// Answers of the HTTP library and of other servers to invalid HTTP, any of which a file may contain.
fn bare_answers() -> Vec<Vec<u8>> {
    let statuses = ["400 Bad Request", "404 Not Found", "414 URI Too Long", "431 x", "499 ", "400"];
    let headers = ["", "connection: close\r\n", "connection: close\r\ncontent-length: 0\r\n", "x: y\r\n"];
    let mut all: Vec<_> = statuses
        .iter()
        .flat_map(|status| headers.map(|headers| format!("HTTP/1.1 {status}\r\n{headers}\r\n").into_bytes()))
        .collect();
    // The shortest and the longest of that form.
    all.push(b"HTTP/1.1 400\r\n\r\n".to_vec());
    all.push(format!("HTTP/1.1 400 {}\r\n\r\n", "x".repeat(239)).into_bytes());
    all
}

async fn upload(skep: &Skep, name: &str, bytes: Vec<u8>) {
    let path = format!("/api/files/raw?path={}", skep.at(name));
    let made = skep.request(Method::PUT, &path).body(bytes).send().await.unwrap();
    assert!(made.status().is_success(), "{made:?}");
}

/// A request for the raw content of a file.
fn download(skep: &Skep, name: &str) -> String {
    format!(
        "GET /api/files/read?path={} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\naccept: application/octet-stream\r\n\r\n",
        skep.at(name),
        skep.admin
    )
}

#[tokio::test]
async fn a_file_that_looks_like_an_answer_at_its_end_is_downloaded_unchanged() {
    let skep = Skep::start().await;
    for (number, shape) in bare_answers().into_iter().enumerate() {
        for pieces in 0..3 {
            let bytes = [vec![b'.'; pieces * PIECE], shape.clone()].concat();
            let name = format!("{number}-{pieces}");
            upload(&skep, &name, bytes.clone()).await;
            let path = format!("/api/files/read?path={}", skep.at(&name));
            let request = skep.request(Method::GET, &path).header("accept", "application/octet-stream");
            let found = request.send().await.unwrap().bytes().await.unwrap();
            let end = String::from_utf8_lossy(&found[found.len().saturating_sub(300)..]);
            assert!(found == bytes, "{pieces} pieces and {:?}: {end}", String::from_utf8_lossy(&shape));
        }
    }
}

/// A proxy that reuses its connection to the server would send such an answer to the next client.
#[tokio::test]
async fn a_file_cannot_answer_the_next_request_of_its_connection() {
    let skep = Skep::start().await;
    for (number, shape) in bare_answers().into_iter().enumerate() {
        let name = number.to_string();
        upload(&skep, &name, [vec![b'.'; PIECE], shape.clone()].concat()).await;
        let mut stream = connect(skep.address).await;
        stream.write_all(download(&skep, &name).as_bytes()).await.unwrap();
        let first = answer(&mut stream).await;
        assert!(first.ends_with(std::str::from_utf8(&shape).unwrap()), "{first:.300}");
        stream.write_all(ROOT.as_bytes()).await.unwrap();
        let second = answer(&mut stream).await;
        assert!(second.starts_with("HTTP/1.1 200 OK\r\n") && second.contains("\"openapi\""), "{second}");
    }
}

#[tokio::test]
async fn a_refused_head_is_answered_in_order_and_with_an_api_error() {
    let skep = Skep::start().await;
    upload(&skep, "file", vec![b'.'; 3 * PIECE]).await;
    let long = "x".repeat(200 << 10);
    for (head, status) in [
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), "400 Bad Request"),
        ("GET / HTTP/1.1\nhost: x\n\n".to_owned(), "400 Bad Request"),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), "414 URI Too Long"),
        (format!("GET / HTTP/1.1\r\nx: {long}\r\n\r\n"), "431 Request Header Fields Too Large"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(101)), "431 Request Header Fields Too Large"),
    ] {
        let all = format!("{ROOT}{}{head}{LAST}{LAST}", download(&skep, "file"));
        let found = exchange(&skep, all).await;
        assert_eq!(answers(&found), 3, "{status}: {found:.2000}");
        let last = &found[found.rfind("HTTP/1.1 4").unwrap()..];
        assert!(last.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{last}");
        for header in [
            "connection: close",
            "skep-error: malformed_request",
            "skep-version: 1",
            "content-type: application/json",
        ] {
            assert!(last.contains(&format!("\r\n{header}\r\n")), "{header}: {last}");
        }
        assert!(last.contains("\r\nx-request-id: "), "{last}");
        let (_, body) = last.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"], status[4..], "{body}");
    }
    let found = exchange(&skep, format!("HEAD / HTTP/9.9\r\n\r\n{LAST}")).await;
    assert!(found.starts_with("HTTP/1.1 400 ") && found.ends_with("\r\n\r\n"), "{found}");
}

/// A client that sends the substitute for a refused head is answered as for any other request.
#[tokio::test]
async fn the_substitute_for_a_refused_head_cannot_be_forged() {
    let skep = Skep::start().await;
    let found = exchange(&skep, "GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert!(found.starts_with("HTTP/1.1 200 "), "{found}");
    let found =
        exchange(&skep, format!("{ROOT}GET / HTTP/1.1\r\nconnection: close\r\n\r\nGET / HTTP/9.9\r\n\r\n"))
            .await;
    assert_eq!(answers(&found), 2, "{found}");
    assert_eq!(found.matches("HTTP/1.1 200 ").count(), 2, "{found}");
}

/// Bytes after such a request are not checked.
#[tokio::test]
async fn a_connection_accepts_no_request_after_connect() {
    let skep = Skep::start().await;
    for head in ["CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", "GET /api/health HTTP/1.1\r\nupgrade: x\r\n\r\n"]
    {
        let mut stream = connect(skep.address).await;
        stream.write_all(format!("{head}{LAST}").as_bytes()).await.unwrap();
        let first = answer(&mut stream).await;
        assert!(first.contains("\r\nconnection: close\r\n"), "{first}");
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap_or(0), 0);
    }
}
