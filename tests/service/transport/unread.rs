//! Refusals before the body of the request is read: the connection is reused, or the answer closes it.

use std::time::{Duration, Instant};

use reqwest::{Body, Method};
use skep_api::Scope;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpStream,
    task::JoinSet,
};

use super::wire::{ROOT, answer, connect};
use crate::harness::Skep;

/// The longest body that the server reads to reuse a connection, in bytes.
const SHORT: usize = 64 << 10;
/// How long the server waits for such a body.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A request that is refused before its body is read: its request line, headers and expected status.
struct Refused {
    line: String,
    headers: String,
    status: u16,
}

/// Refusals for a missing or invalid key, a missing scope, an unknown path, a wrong method and a failed precondition.
async fn refusals(skep: &Skep) -> Vec<Refused> {
    let (reader, _) = skep.key(&[Scope::FilesRead]).await;
    let bearer = |key: &str| format!("authorization: Bearer {key}\r\n");
    let admin = bearer(&skep.admin);
    let path = format!("/api/files/raw?path={}", skep.at("file"));
    let made = skep.request(Method::PUT, &path).body("content").send().await.unwrap();
    assert!(made.status().is_success());
    let refused = |line: &str, headers: String, status| Refused { line: line.to_owned(), headers, status };
    vec![
        refused("POST /api/keys", String::new(), 401),
        refused("POST /api/keys", bearer("sk-skep-test-0"), 401),
        refused("POST /api/files/write", bearer(&reader), 403),
        refused("POST /api/nothing", admin.clone(), 404),
        refused("DELETE /api/health", String::new(), 405),
        refused("POST /api/files/write?x=1", admin.clone(), 400),
        refused(&format!("PUT {path}"), format!("{admin}if-match: \"another\"\r\n"), 412),
    ]
}

impl Refused {
    fn head(&self, length: usize) -> String {
        format!("{} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{}\r\n", self.line, self.headers)
    }
}

/// A new connection.
async fn opened(skep: &Skep) -> BufStream<TcpStream> {
    let stream = connect(skep.address).await;
    // Without it, Nagle's algorithm delays each body until the head is acknowledged.
    stream.set_nodelay(true).unwrap();
    BufStream::new(stream)
}

/// Sends the head, then the body, and reads the answer.
async fn send(stream: &mut BufStream<TcpStream>, refused: &Refused, length: usize) -> String {
    stream.write_all(refused.head(length).as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    stream.write_all(&vec![b'x'; length]).await.unwrap();
    stream.flush().await.unwrap();
    let found = answer(stream).await;
    assert!(found.starts_with(&format!("HTTP/1.1 {} ", refused.status)), "{}: {found}", refused.line);
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_refusals_break_no_connection() {
    let skep = Skep::start().await;
    let refusals = refusals(&skep).await;
    // By hand: each connection gets all refusals, and finally a request that is served.
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(opened(&skep).await);
    }
    for turn in 0..200 {
        let length = if turn % 50 == 0 { SHORT } else { 1 + 5 * turn };
        for (number, stream) in streams.iter_mut().enumerate() {
            let begun = Instant::now();
            let found = send(stream, &refusals[(turn + number) % refusals.len()], length).await;
            if !found.contains("connection: close") {
                continue;
            }
            // A loaded machine may have delayed the body for longer than the server waits.
            assert!(begun.elapsed() >= DRAIN_TIMEOUT, "{found}");
            *stream = opened(&skep).await;
        }
    }
    for stream in &mut streams {
        stream.write_all(ROOT.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        assert!(answer(stream).await.starts_with("HTTP/1.1 200 "));
    }
    // By a connection pool, with some bodies that are too long to reuse the connection.
    let mut calls = JoinSet::new();
    for turn in 0..1_000 {
        let (line, status) = (refusals[turn % 6].line.clone(), refusals[turn % 6].status);
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = skep.bare(method.parse().unwrap(), path);
        for header in refusals[turn % 6].headers.lines() {
            let (name, value) = header.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let length = if turn % 100 == 7 { 1 << 20 } else { turn % 3_000 };
        let request = request.body(Body::from(vec![b'x'; length]));
        calls.spawn(async move { assert_eq!(request.send().await.unwrap().status().as_u16(), status) });
        if calls.len() >= 16 {
            calls.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
}

#[tokio::test]
async fn a_refusal_that_leaves_much_unread_says_that_it_closes() {
    let skep = Skep::start().await;
    for refused in refusals(&skep).await {
        // The answer does not wait for the body, and the connection is not reset while the body is sent.
        let mut stream = BufStream::new(connect(skep.address).await);
        stream.write_all(refused.head(SHORT + 1).as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let found = answer(&mut stream).await;
        assert!(found.starts_with(&format!("HTTP/1.1 {} ", refused.status)), "{}: {found}", refused.line);
        assert!(found.contains("\r\nconnection: close\r\n"), "{found}");
        stream.write_all(&vec![b'x'; SHORT + 1]).await.unwrap();
        stream.flush().await.unwrap();
        stream.get_mut().shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0, "{}", refused.line);
    }
}

#[tokio::test]
async fn a_rest_that_does_not_come_is_not_waited_for() {
    let skep = Skep::start().await;
    let refused = &refusals(&skep).await[0];
    let mut stream = connect(skep.address).await;
    stream.write_all(refused.head(SHORT).as_bytes()).await.unwrap();
    let found = answer(&mut stream).await;
    assert!(found.starts_with("HTTP/1.1 401 ") && found.contains("\r\nconnection: close\r\n"), "{found}");
    // A client that sent `Expect: 100-continue` gets no `100 Continue`.
    let mut stream = connect(skep.address).await;
    let head = refused.head(SHORT).replace("host: x", "host: x\r\nexpect: 100-continue");
    stream.write_all(head.as_bytes()).await.unwrap();
    let found = answer(&mut stream).await;
    assert!(found.starts_with("HTTP/1.1 401 ") && found.contains("\r\nconnection: close\r\n"), "{found}");
}
