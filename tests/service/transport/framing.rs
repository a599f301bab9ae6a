//! Ambiguous requests are answered by exactly one refusal.

use super::wire::{LAST, ROOT, answer, answers, connect, exchange, rest};
use crate::harness::Skep;
use tokio::io::AsyncWriteExt;

/// Ambiguous heads, each followed by bytes that some parsers would take for a body.
const AMBIGUOUS: &[(&str, &str)] = &[
    (
        "length and chunks",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunks and length",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    ),
    ("two lengths", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 9\r\n\r\n"),
    (
        "the same length twice",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
    ),
    ("a list of lengths", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 0, 0\r\n\r\n"),
    ("a length with a sign", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: +0\r\n\r\n"),
    ("a negative length", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n"),
    ("a hexadecimal length", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 0x0\r\n\r\n"),
    ("an empty length", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n\r\n"),
    (
        "a length beyond numbers",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551616\r\n\r\n",
    ),
    ("another coding", "POST /api/keys HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n"),
    (
        "chunked and another",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "another and chunked",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked twice",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("nearly chunked", "POST /api/keys HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    (
        "chunks in HTTP/1.0",
        "POST /api/keys HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a folded line",
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n transfer-encoding: chunked\r\n\r\n",
    ),
    ("a folded first line", "POST /api/keys HTTP/1.1\r\n host: x\r\n\r\n"),
    ("a bare line feed after a header", "POST /api/keys HTTP/1.1\r\nhost: x\ncontent-length: 0\r\n\r\n"),
    ("a bare line feed after the first line", "POST /api/keys HTTP/1.1\nhost: x\r\n\r\n"),
    ("nothing but bare line feeds", "POST /api/keys HTTP/1.1\nhost: x\n\n"),
    ("a bare carriage return", "POST /api/keys HTTP/1.1\r\nhost: x\rcontent-length: 9\r\n\r\n"),
    ("a blank before the colon", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length : 0\r\n\r\n"),
    ("a blank before a name", "POST /api/keys HTTP/1.1\r\nhost: x\r\n content-length: 9\r\n\r\n"),
    ("a NUL in a name", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length\0: 9\r\n\r\n"),
    ("a NUL in a value", "POST /api/keys HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n"),
    ("a line without a colon", "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length 9\r\n\r\n"),
    ("an empty name", "POST /api/keys HTTP/1.1\r\nhost: x\r\n: 9\r\n\r\n"),
    ("two hosts", "POST /api/keys HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n"),
    ("another version", "POST /api/keys HTTP/1.2\r\nhost: x\r\n\r\n"),
    ("no version", "POST /api/keys\r\nhost: x\r\n\r\n"),
    ("words behind the version", "POST /api/keys HTTP/1.1 HTTP/1.1\r\nhost: x\r\n\r\n"),
];

#[tokio::test]
async fn ambiguous_requests_are_refused_once() {
    let skep = Skep::start().await;
    for (what, head) in AMBIGUOUS {
        let response = exchange(&skep, format!("{head}{LAST}")).await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{what}: {response}");
        assert_eq!(answers(&response), 1, "{what}: {response}");
        assert!(response.contains("\r\nskep-error: malformed_request\r\n"), "{what}: {response}");
        assert!(response.contains("\r\nconnection: close\r\n"), "{what}: {response}");
    }
    let response = exchange(&skep, LAST).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
}

#[tokio::test]
async fn the_same_holds_behind_a_request_that_was_served_and_byte_by_byte() {
    let skep = Skep::start().await;
    for (what, head) in AMBIGUOUS.iter().step_by(3) {
        let response = exchange(&skep, format!("{ROOT}{head}{LAST}")).await;
        assert_eq!(answers(&response), 2, "{what}: {response}");
        assert!(response.contains("HTTP/1.1 400 "), "{what}: {response}");
        let mut stream = connect(skep.address).await;
        stream.set_nodelay(true).unwrap();
        for byte in format!("{head}{LAST}").bytes() {
            if stream.write_all(&[byte]).await.is_err() {
                break;
            }
        }
        let response = rest(&mut stream).await;
        assert!(answers(&response) <= 1 && !response.contains("HTTP/1.1 200 "), "{what}: {response}");
    }
}

/// The control: valid pipelined requests are all served.
#[tokio::test]
async fn requests_that_are_written_well_are_all_served() {
    let skep = Skep::start().await;
    let response = exchange(&skep, format!("{ROOT}\r\n{ROOT}{LAST}")).await;
    assert_eq!((answers(&response), response.matches("HTTP/1.1 200 ").count()), (3, 3), "{response}");
    let post = "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n\n\n\n\n";
    let response = exchange(&skep, format!("{post}{LAST}")).await;
    assert_eq!((answers(&response), response.matches("HTTP/1.1 200 ").count()), (2, 1), "{response}");
}

#[tokio::test]
async fn a_body_longer_than_its_content_length_is_no_second_request() {
    let skep = Skep::start().await;
    let head =
        "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n";
    let response = exchange(&skep, format!("{head}{{}}, \"name\": \"x\"}}\r\n\r\n{LAST}")).await;
    assert_eq!(answers(&response), 2, "{response}");
    assert!(response.starts_with("HTTP/1.1 401 ") && response.contains("HTTP/1.1 400 "), "{response}");
}

#[tokio::test]
async fn nothing_is_read_after_a_chunked_body() {
    let skep = Skep::start().await;
    let key = &skep.admin;
    let head = format!(
        "POST /api/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    for (what, chunks, status) in [
        ("well-formed", "2\r\n{}\r\n0\r\n\r\n", 400),
        ("no number", "zz\r\n{}\r\n0\r\n\r\n", 400),
        ("a negative number", "-2\r\n{}\r\n0\r\n\r\n", 400),
        ("a prefix", "0x2\r\n{}\r\n0\r\n\r\n", 400),
        ("more than a number holds", "fffffffffffffffff2\r\n{}\r\n0\r\n\r\n", 400),
        ("longer than its chunk size", "1\r\n{}\r\n0\r\n\r\n", 400),
        ("an endless extension", &format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(20_000)), 400),
        ("a bare line feed", "2\n{}\r\n0\r\n\r\n", 400),
        ("a line feed in an extension", "2;a\nb\r\n{}\r\n0\r\n\r\n", 400),
        ("no end", "2\r\n{}\r\n0\r\nx", 400),
    ] {
        let response = exchange(&skep, format!("{head}{chunks}{LAST}")).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {response}");
        assert_eq!(answers(&response), 1, "{what}: {response}");
    }
    // The body `{}` was read: the refusal names the missing fields.
    let response = exchange(&skep, format!("{head}2\r\n{{}}\r\n0\r\n\r\n")).await;
    assert!(
        response.contains("skep-error: missing_parameter") || response.contains("skep-error: invalid_value"),
        "{response}"
    );
    assert!(response.contains("connection: close"), "{response}");
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request() {
    let skep = Skep::start().await;
    let mut stream = connect(skep.address).await;
    for _ in 0..5 {
        stream.write_all(ROOT.as_bytes()).await.unwrap();
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
    }
}
