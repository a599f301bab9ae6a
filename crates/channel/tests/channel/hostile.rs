//! Guests that violate the protocol.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture};
use skep_api::{
    AbsolutePath, ErrorCode, Failure, Operation,
    exec::{ExecEvent, KEPT_OUTPUT_BYTES, RunCommand},
    files::{ContentEncoding, GrepFiles, ListFolder, MakeFolder, ReadFile},
    path::PathEncoding,
};
use skep_channel::{
    AnswerMemory, Content, Error, Guest, HandOut, HandOutReport, Identity, IdentityReport, TimeAndSeed,
    guest::{Events, Handler, serve},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::{Semaphore, SemaphorePermit, watch},
};

use crate::{command, fixture::DEADLINE};

#[tokio::test]
async fn a_hostile_guest_is_an_error_and_no_more() {
    for garbage in [vec![0xFF; 100_000], vec![0; 100_000], b"HTTP/1.1 200 OK\r\n\r\n".to_vec()] {
        let (host, mut guest) = UnixStream::pair().expect("a pair");
        tokio::spawn(async move {
            let mut marker = [0; 48];
            guest.read_exact(&mut marker).await.expect("a marker");
            guest.write_all(&marker).await.expect("written");
            // The host may hang up before everything is sent.
            let _ = guest.write_all(&garbage).await;
            let mut rest = Vec::new();
            let _ = guest.read_to_end(&mut rest).await;
        });
        match Guest::connect(host, DEADLINE).await {
            Err(error) => assert!(matches!(error, Error::Ended), "{error}"),
            Ok(guest) => {
                let answer = guest.call(&command("true")).await;
                assert_eq!(answer.expect_err("garbage").code(), ErrorCode::VmEnded);
            }
        }
    }
}

/// Answers every request with an error of this code, or else with these bytes, and sends endless streams.
#[derive(Clone)]
struct HostileGuest {
    code: Option<ErrorCode>,
    answer: Vec<u8>,
}

impl HostileGuest {
    fn refusing(code: ErrorCode) -> Self {
        Self { code: Some(code), answer: Vec::new() }
    }

    fn answering(answer: impl Into<Vec<u8>>) -> Self {
        Self { code: None, answer: answer.into() }
    }

    fn refusal(&self) -> Result<(), Failure> {
        self.code.map_or(Ok(()), |code| Err(Failure::new(code, "refused by the guest")))
    }

    async fn connect(self) -> Guest {
        let (host, guest) = UnixStream::pair().expect("a pair");
        tokio::spawn(serve(guest, self));
        Guest::connect(host, DEADLINE).await.expect("a connection")
    }
}

impl Handler for HostileGuest {
    fn request_limit(&self) -> usize {
        1 << 20
    }

    async fn set_identity(&self, _: Identity) -> Result<IdentityReport, Failure> {
        std::future::pending().await
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        std::future::pending().await
    }

    async fn set_clock(&self, _: TimeAndSeed) -> Result<HandOutReport, Failure> {
        std::future::pending().await
    }

    async fn rest(&self) -> Result<(), Failure> {
        self.refusal()
    }

    async fn settle(&self) -> Result<(), Failure> {
        self.refusal()
    }

    async fn run(&self, _: &str, _: &str, _: Vec<u8>) -> Result<Vec<u8>, Failure> {
        self.refusal()?;
        Ok(self.answer.clone())
    }

    async fn run_streamed(&self, name: &str, _: Bytes, _: Content) -> Result<(Vec<u8>, Content), Failure> {
        Err(Failure::new(ErrorCode::UnknownRoute, name))
    }

    fn start(&self, _: &str, _: RunCommand) -> Result<Events, Failure> {
        self.refusal()?;
        let piece = ExecEvent::Stdout(Bytes::from_static(&[b'x'; 1 << 14]));
        Ok(Box::pin(futures_util::stream::repeat((0, piece))))
    }

    fn attach(&self, _: &str, _: u64, _: u64) -> Result<Events, Failure> {
        self.refusal()?;
        Ok(Box::pin(futures_util::stream::empty()))
    }

    fn cancel(&self, _: &str) -> Result<(), Failure> {
        self.refusal()
    }
}

#[tokio::test]
async fn a_guest_cannot_send_errors_about_keys_capacity_or_other_vms() {
    let received = |code| async move {
        let guest = HostileGuest::refusing(code).connect().await;
        guest.call(&command("true")).await.expect_err("a refusal").code()
    };
    for code in [ErrorCode::UnknownPath, ErrorCode::InvalidValue, ErrorCode::PathOutsideRoots] {
        assert_eq!(received(code).await, code);
    }
    for code in [ErrorCode::TokenExpired, ErrorCode::NoCapacity, ErrorCode::UnknownVm, ErrorCode::VmEnded] {
        assert_eq!(received(code).await, ErrorCode::GuestTimeout, "{}", code.as_str());
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let guest = HostileGuest::answering(vec![b' '; 65 << 20]).connect().await;
    let huge = guest.call(&command("true")).await.expect_err("too much");
    assert!(matches!(huge, Error::Malformed(_)), "{huge}");
    assert_eq!(huge.code(), ErrorCode::GuestTimeout);
}

/// The result of an operation when the guest sends this answer.
async fn result_of<O: Operation>(operation: &O, answer: String) -> Result<O::Answer, Error> {
    HostileGuest::answering(answer).connect().await.call(operation).await
}

fn path(text: &str) -> AbsolutePath {
    AbsolutePath::parse("path", text, PathEncoding::Plain).expect("a path")
}

#[tokio::test]
async fn an_answer_is_as_long_as_what_was_asked_allows() {
    let made = |length: usize| format!(r#"{{"path": "/{}", "created": true}}"#, "x".repeat(length));
    let make = MakeFolder { path: path("/x"), mode: None };
    assert!(result_of(&make, made(4096)).await.is_ok());
    assert!(matches!(result_of(&make, made(64 << 10)).await, Err(Error::Malformed(_))));

    let read = |limit| ReadFile { path: path("/x"), encoding: ContentEncoding::default(), offset: 0, limit };
    let content = |length: usize| {
        format!(
            r#"{{"path": "/x", "content": "{}", "encoding": "utf-8", "size_bytes": 1, "etag": "x", "truncated": false,
            "modified_at": "2026-01-01T00:00:00.000Z"}}"#,
            "\\u0000".repeat(length)
        )
    };
    assert!(result_of(&read(Some(100_000)), content(100_000)).await.is_ok());
    assert!(matches!(result_of(&read(Some(100_000)), content(112_000)).await, Err(Error::Malformed(_))));
    assert!(result_of(&read(None), content(5 << 20)).await.is_ok());
    assert!(matches!(result_of(&read(None), content(6 << 20)).await, Err(Error::Malformed(_))));

    let ran = |length: usize| {
        let stream = "\\u0000".repeat(length);
        format!(
            r#"{{"stdout": "{stream}", "stderr": "{stream}", "exit_code": 0, "signal": null, "duration_ms": 1,
            "timed_out": false, "truncated": true}}"#
        )
    };
    assert!(result_of(&command("true"), ran(KEPT_OUTPUT_BYTES)).await.is_ok());
    assert!(matches!(
        result_of(&command("true"), ran(KEPT_OUTPUT_BYTES + 8000)).await,
        Err(Error::Malformed(_))
    ));
}

/// Each value takes three bytes of JSON, and many times as many in memory.
#[tokio::test]
async fn an_answer_has_no_more_values_than_what_was_asked_allows() {
    let grep =
        |limit, context| GrepFiles { path: path("/x"), pattern: "x".to_owned(), glob: None, context, limit };
    let found = |lines: usize| {
        let before = vec![r#""""#; lines].join(",");
        format!(
            r#"{{"matches": [{{"path": "", "line": 1, "column": 1, "text": "", "before": [{before}], "after": []}}],
            "truncated": false}}"#
        )
    };
    assert_eq!(result_of(&grep(10, 100), found(2000)).await.expect("it fits").matches[0].before.len(), 2000);
    assert!(matches!(result_of(&grep(10, 100), found(10_000)).await, Err(Error::Malformed(_))));
    // The largest request, and the largest number of values in 16 MiB.
    assert!(result_of(&grep(10_000, 100), found(2_000_000)).await.is_ok());
    assert!(matches!(result_of(&grep(10_000, 100), found(5_500_000)).await, Err(Error::Malformed(_))));
}

/// Memory that a test grants, or refuses by closing `granted`.
#[derive(Debug)]
struct GrantedMemory {
    asked: watch::Sender<u64>,
    granted: Semaphore,
}

impl AnswerMemory for GrantedMemory {
    fn reserve(&self, bytes: u64) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            self.asked.send_replace(bytes);
            let permit = self.granted.acquire().await;
            permit.map(SemaphorePermit::forget).map_err(|_| Failure::new(ErrorCode::Overloaded, "no memory"))
        })
    }
}

#[tokio::test]
async fn a_long_answer_is_read_when_there_is_memory_for_it() {
    let length = 200 << 10;
    let json = format!(r#"{{"path": "/{}", "entries": [], "next_cursor": null}}"#, "x".repeat(length));
    let list = ListFolder::first_page(path("/x"));
    let connection = HostileGuest::answering(json.clone()).connect().await;
    let memory = Arc::new(GrantedMemory { asked: watch::Sender::new(0), granted: Semaphore::new(0) });
    let guest = connection.with_answer_memory(memory.clone());
    for is_granted in [true, false] {
        let (called, operation) = (guest.clone(), list.clone());
        let call = tokio::spawn(async move { called.call(&operation).await });
        let mut asked = memory.asked.subscribe();
        let bytes = *asked.wait_for(|bytes| *bytes > 0).await.expect("it asks");
        assert_eq!(bytes, json.len() as u64);
        assert!(!call.is_finished());
        // Who has memory is answered meanwhile.
        assert!(connection.call(&list).await.is_ok());
        memory.asked.send_replace(0);
        if is_granted {
            memory.granted.add_permits(1);
            assert_eq!(call.await.expect("no panic").expect("an answer").path.len(), length + 1);
        } else {
            memory.granted.close();
            let refused = call.await.expect("no panic").expect_err("a refusal");
            assert_eq!(refused.code(), ErrorCode::Overloaded);
        }
    }
}

#[tokio::test]
async fn a_stream_that_never_stops_ends_when_its_time_is_over() {
    let guest = HostileGuest::answering("").connect().await;
    let mut stream = guest.start(&command("true")).await.expect("a stream");
    assert!(stream.next().await.expect("an event").is_ok());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let rest = async {
        loop {
            if let Err(error) = stream.next().await.expect("an event") {
                return error;
            }
        }
    };
    let end = tokio::time::timeout(DEADLINE, rest).await.expect("an end");
    assert!(matches!(end, Error::Timeout(_)), "{end}");
    assert!(stream.next().await.is_none());
}
