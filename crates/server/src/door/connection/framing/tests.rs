use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::body::Body;
use hyper::{Response, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::boundaries::{RequestBoundaries, Step};
use crate::error::HeadRefusal;

const LONGEST_HEAD: usize = 4096;
const MOST_HEADERS: usize = 16;

/// The pieces that are passed on of these bytes, and the refusal that ends them.
fn pieces(bytes: &[u8]) -> (Vec<Vec<u8>>, Option<HeadRefusal>) {
    let mut boundaries = RequestBoundaries::new(LONGEST_HEAD, MOST_HEADERS);
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        match boundaries.next(rest) {
            Step::Refused { refusal, .. } => return (pieces, Some(refusal)),
            Step::Buffered => break,
            Step::Pass(length) => {
                assert!(length > 0);
                pieces.push(rest[..length].to_vec());
                rest = &rest[length..];
            }
            Step::Head { taken, head, .. } => {
                assert!(taken > 0);
                pieces.push(head);
                rest = &rest[taken..];
            }
        }
    }
    (pieces, None)
}

#[test]
fn pipelined_requests_are_separated() {
    let (get, post) = ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n");
    let all = format!("{get}{post}a\nb\nc\r\n{get}");
    let (pieces, refusal) = pieces(all.as_bytes());
    assert_eq!(refusal, None);
    let pieces: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
    assert_eq!(pieces, [get, post, "a\nb\nc", get]);
}

const LAST_CHUNK: &str = "0\r\n\r\n";

/// Ambiguous heads, each with its body, and the number of requests that the HTTP library alone reads if another request follows; `None`
/// where it answers 400 or 431 without a body and closes the connection. `docs/security/callers.md` lists them in groups.
const AMBIGUOUS: &[(&str, &str, Option<usize>)] = &[
    ("GET / HTTP/1.1\nhost: x\n\n", "", Some(2)),
    ("GET / HTTP/1.1\r\nhost: x\n\r\n", "", Some(2)),
    ("GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", "", Some(2)),
    ("GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n", "x", Some(2)),
    ("GET / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n", LAST_CHUNK, Some(2)),
    ("GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", LAST_CHUNK, Some(1)),
    ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", LAST_CHUNK, Some(1)),
    ("GET / HTTP/1.1\r\nhost: x\rx: y\r\n\r\n", "", None),
    ("GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "x", None),
    ("GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n", LAST_CHUNK, None),
    ("GET / HTTP/1.1\r\ntransfer-encoding: \u{b}chunked\r\n\r\n", LAST_CHUNK, None),
    ("GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", LAST_CHUNK, None),
    ("GET / HTTP/1.1\r\ncontent-length: +1\r\n\r\n", "x", None),
    ("GET / HTTP/1.1\r\ncontent-length: 1, 1\r\n\r\n", "x", None),
    ("GET / HTTP/1.1\r\ncontent-length:\r\n\r\n", "", None),
    ("GET / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n", "", None),
    ("GET / HTTP/1.1\r\ncontent-length: 18446744073709551614\r\n\r\n", "", None),
];

#[test]
fn ambiguous_heads_are_refused() {
    for (head, body, _) in AMBIGUOUS {
        let bytes = format!("{head}{body}GET /second HTTP/1.1\r\n\r\n");
        let (pieces, refusal) = pieces(bytes.as_bytes());
        assert_eq!((pieces.len(), refusal), (0, Some(HeadRefusal::Malformed)), "{head:?}: {pieces:?}");
    }
}

/// The control of [`ambiguous_heads_are_refused`].
#[tokio::test]
async fn the_http_library_alone_reads_some_ambiguous_heads() {
    for (head, body, requests) in AMBIGUOUS {
        let bytes = format!("{head}{body}GET /second HTTP/1.1\r\n\r\n");
        let alone = http_library(bytes.as_bytes()).await;
        assert_eq!(alone.requests, *requests, "{head:?}");
        if requests.is_none() {
            let answer = alone.answers;
            assert!(
                (answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.1 431 "))
                    && answer.ends_with("\r\n\r\n"),
                "{head:?}: {answer:?}"
            );
        }
    }
}

#[test]
fn what_the_http_library_would_answer_by_itself_is_refused_before() {
    let long = |length: usize| "a".repeat(length);
    for (head, expected) in [
        ("G\0T / HTTP/1.1\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("GET  / HTTP/1.1\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("GET / HTTP/1.2\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("GET /\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("GET nowhere/x HTTP/1.1\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("GET http:// HTTP/1.1\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("GET / HTTP/1.1\r\n folded: x\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("GET / HTTP/1.1\r\nname : x\r\n\r\n".to_owned(), HeadRefusal::Malformed),
        ("\u{16}\u{3}\u{1}".to_owned(), HeadRefusal::Malformed),
        ("no HTTP at all\n".to_owned(), HeadRefusal::Malformed),
        (
            format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(MOST_HEADERS + 1)),
            HeadRefusal::HeadersTooLarge,
        ),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", long(LONGEST_HEAD)), HeadRefusal::HeadersTooLarge),
        (format!("GET /{} HTTP/1.1\r\n\r\n", long(LONGEST_HEAD)), HeadRefusal::TargetTooLong),
    ] {
        let (pieces, refusal) = pieces(head.as_bytes());
        assert_eq!((pieces.len(), refusal), (0, Some(expected)), "{head:?}");
    }
    // With a larger limit for the head, the limit of the target applies.
    let mut boundaries = RequestBoundaries::new(1 << 20, MOST_HEADERS);
    let head = format!("GET /{} HTTP/1.1\r\n\r\n", long(usize::from(u16::MAX) - 1));
    let refused = Step::Refused { refusal: HeadRefusal::TargetTooLong, is_head: false };
    assert_eq!(boundaries.next(head.as_bytes()), refused);
    let mut boundaries = RequestBoundaries::new(1 << 20, MOST_HEADERS);
    let head = format!("HEAD / HTTP/1.1\r\n{}: x\r\n\r\n", long(usize::from(u16::MAX) + 1));
    let refused = Step::Refused { refusal: HeadRefusal::HeadersTooLarge, is_head: true };
    assert_eq!(boundaries.next(head.as_bytes()), refused);
}

#[test]
fn bytes_after_chunked_encoding_or_an_upgrade_pass_unchecked() {
    for head in [
        "POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n",
        "CONNECT x:1 HTTP/1.1\r\n\r\n",
    ] {
        let mut boundaries = RequestBoundaries::new(LONGEST_HEAD, MOST_HEADERS);
        let Step::Head { is_last: true, .. } = boundaries.next(head.as_bytes()) else { panic!("{head:?}") };
        assert_eq!(boundaries.next(b"1\n2\n\n"), Step::Pass(5), "{head:?}");
    }
}

/// The result of serving some bytes by the HTTP library.
struct HttpLibrary {
    /// The number of requests that it read; `None` where it refused any.
    requests: Option<usize>,
    answers: String,
}

/// Serves these bytes by the HTTP library alone.
async fn http_library(bytes: &[u8]) -> HttpLibrary {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    client.write_all(bytes).await.unwrap();
    let _ = client.shutdown().await;
    let requests = AtomicUsize::new(0);
    let service = service_fn(|_| {
        requests.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    });
    let mut library = http1::Builder::new();
    library.max_headers(MOST_HEADERS).max_buf_size(LONGEST_HEAD.max(8 << 10)).half_close(true);
    // The answers fit into the pipe, so they are read after the end.
    let served = library.serve_connection(TokioIo::new(server), service).await;
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.unwrap();
    HttpLibrary { requests: served.is_ok().then(|| requests.load(Ordering::Relaxed)), answers }
}

/// Parts of heads, valid and invalid.
const PARTS: &[&str] = &[
    "GET",
    "HEAD",
    "CONNECT",
    "G@T",
    "a",
    " ",
    "  ",
    "/",
    "*",
    "x:1",
    "http://x/y",
    "//",
    "?",
    "#",
    "%",
    "\u{e9}",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/2.0",
    "\r\n",
    "\n",
    "\r",
    "\0",
    ":",
    "host: x\r\n",
    "expect: 100-continue\r\n",
    "connection: close\r\n",
    "upgrade: x\r\n",
    "content-length: 0\r\n",
    "content-length: -1\r\n",
    "transfer-encoding: chunked\r\n",
    "x: y\r\nx: y\r\nx: y\r\nx: y\r\nx: y\r\nx: y\r\nx: y\r\nx: y\r\n",
];

/// Mostly a valid request line with an unusual part.
fn head() -> impl Strategy<Value = String> {
    let part = prop::sample::select(PARTS);
    let parts = prop::collection::vec(part.clone(), 0..5);
    let line = prop_oneof![
        3 => (prop::sample::select(&PARTS[..5]), prop::sample::select(&PARTS[7..16])).prop_map(|(method, target)| {
            format!("{method} {target} HTTP/1.1\r\n")
        }),
        1 => parts.clone().prop_map(|parts| parts.concat() + "\r\n"),
    ];
    (line, parts).prop_map(|(line, parts)| format!("{line}{}\r\n", parts.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_http_library_reads_every_head_that_is_handed_on(head in head()) {
        let mut boundaries = RequestBoundaries::new(LONGEST_HEAD, MOST_HEADERS);
        if let Step::Head { taken, head: bytes, .. } = boundaries.next(head.as_bytes()) {
            prop_assert!(taken <= head.len());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let alone = runtime.block_on(http_library(&bytes));
            prop_assert_eq!(alone.requests, Some(1), "{:?}", head);
        }
    }

    #[test]
    fn no_bytes_break_it_however_they_are_cut(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1_usize..40) {
        for part in [cut, bytes.len().max(1)] {
            let mut boundaries = RequestBoundaries::new(64, 4);
            'parts: for part in bytes.chunks(part) {
                let mut rest = part;
                while !rest.is_empty() {
                    let length = match boundaries.next(rest) {
                        Step::Pass(length) | Step::Head { taken: length, .. } => length,
                        Step::Buffered => rest.len(),
                        Step::Refused { .. } => break 'parts,
                    };
                    prop_assert!(length > 0);
                    rest = &rest[length..];
                }
            }
        }
    }

    #[test]
    fn a_head_is_judged_the_same_however_it_is_cut(cut in 1_usize..80) {
        let bytes = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n";
        let mut boundaries = RequestBoundaries::new(LONGEST_HEAD, MOST_HEADERS);
        let mut handed_on = Vec::new();
        for part in bytes.chunks(cut) {
            let mut rest = part;
            while !rest.is_empty() {
                match boundaries.next(rest) {
                    Step::Pass(length) => {
                        handed_on.extend_from_slice(&rest[..length]);
                        rest = &rest[length..];
                    }
                    Step::Head { taken, head, .. } => {
                        handed_on.extend(head);
                        rest = &rest[taken..];
                    }
                    Step::Buffered => rest = &[],
                    Step::Refused { .. } => panic!("refused"),
                }
            }
        }
        prop_assert_eq!(handed_on, bytes.to_vec());
        prop_assert!(!boundaries.in_head());
    }
}
