//! Guests that lie.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use skep_api::{
    ErrorCode, Failure,
    exec::{ExecEvent, RunCommand},
};
use skep_channel::{
    Content, Error, Guest, HandOut, HandOutReport, Identity, IdentityReport,
    guest::{Events, Handler, serve},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::{command, ground::DEADLINE};

#[tokio::test]
async fn a_hostile_guest_is_an_error_and_no_more() {
    for garbage in [vec![0xFF; 100_000], vec![0; 100_000], b"HTTP/1.1 200 OK\r\n\r\n".to_vec()] {
        let (host, mut guest) = UnixStream::pair().expect("a pair");
        tokio::spawn(async move {
            let mut marker = [0; 48];
            guest.read_exact(&mut marker).await.expect("a marker");
            guest.write_all(&marker).await.expect("written");
            // The host may hang up in the middle of it.
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

/// Refuses with this code, or else never stops.
#[derive(Clone)]
struct Liar(Option<ErrorCode>);

impl Liar {
    fn refusal(&self) -> Result<(), Failure> {
        self.0.map_or(Ok(()), |code| Err(Failure::new(code, "says the guest")))
    }

    async fn connect(self) -> Guest {
        let (host, guest) = UnixStream::pair().expect("a pair");
        tokio::spawn(serve(guest, self));
        Guest::connect(host, DEADLINE).await.expect("a connection")
    }
}

impl Handler for Liar {
    fn request_limit(&self) -> usize {
        1 << 20
    }

    async fn take_identity(&self, _: Identity) -> Result<IdentityReport, Failure> {
        std::future::pending().await
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
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
        Ok(vec![b' '; 65 << 20])
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
async fn a_guest_says_nothing_of_keys_capacity_or_other_vms() {
    let told = |code| async move {
        let guest = Liar(Some(code)).connect().await;
        guest.call(&command("true")).await.expect_err("a refusal").code()
    };
    for code in [ErrorCode::UnknownPath, ErrorCode::InvalidValue, ErrorCode::PathOutsideRoots] {
        assert_eq!(told(code).await, code);
    }
    for code in [ErrorCode::TokenExpired, ErrorCode::NoCapacity, ErrorCode::UnknownVm, ErrorCode::VmEnded] {
        assert_eq!(told(code).await, ErrorCode::Internal, "{}", code.as_str());
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let guest = Liar(None).connect().await;
    let huge = guest.call(&command("true")).await.expect_err("too much");
    assert!(matches!(huge, Error::Malformed(_)), "{huge}");
}

#[tokio::test]
async fn a_stream_that_never_stops_ends_when_its_time_is_over() {
    let guest = Liar(None).connect().await;
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
    assert!(matches!(end, Error::Silent(_)), "{end}");
    assert!(stream.next().await.is_none());
}
