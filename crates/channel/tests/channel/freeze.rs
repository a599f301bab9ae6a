//! Freeze and thaw, with a guest end that keeps the rules and with hostile ones.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use skep_api::{ErrorCode, Failure, exec::RunCommand};
use skep_channel::{
    Content, Error, FreezeReport, FreezeRequest, Guest, HandOut, HandOutReport, Identity, IdentityReport,
    ThawRequest, TimeAndSeed,
    guest::{Events, Handler, serve},
    marker::Scanner,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::watch,
};

use crate::{
    command,
    fixture::{DEADLINE, Fixture},
};

/// How a guest answers a freeze.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Honest,
    Refuses(ErrorCode),
    /// Claims less than was asked for.
    DoesNotSync,
    Silent,
}

/// A guest without programs that holds the token of a freeze.
#[derive(Clone)]
struct FreezingGuest {
    behaviour: Behaviour,
    token: Arc<watch::Sender<Option<String>>>,
}

impl FreezingGuest {
    fn new(behaviour: Behaviour) -> Self {
        Self { behaviour, token: Arc::new(watch::Sender::new(None)) }
    }

    async fn connect(&self) -> Guest {
        let (host, guest) = UnixStream::pair().expect("a pair");
        tokio::spawn(serve(guest, self.clone()));
        Guest::connect(host, DEADLINE).await.expect("a connection")
    }
}

impl Handler for FreezingGuest {
    fn request_limit(&self) -> usize {
        1 << 20
    }

    async fn set_identity(&self, _: Identity) -> Result<IdentityReport, Failure> {
        pending().await
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        pending().await
    }

    async fn set_clock(&self, _: TimeAndSeed) -> Result<HandOutReport, Failure> {
        Ok(HandOutReport { reseeded: true, clock_step_ms: 0.0 })
    }

    async fn freeze(&self, request: FreezeRequest) -> Result<FreezeReport, Failure> {
        match self.behaviour {
            Behaviour::Refuses(code) => return Err(Failure::new(code, "refused by the guest")),
            Behaviour::Silent => return pending().await,
            Behaviour::DoesNotSync => return Ok(FreezeReport { synced: false }),
            Behaviour::Honest => {}
        }
        if self.token.borrow().as_ref().is_some_and(|held| *held != request.token) {
            return Err(Failure::new(ErrorCode::ExecFailed, "frozen for another copy"));
        }
        self.token.send_replace(Some(request.token));
        Ok(FreezeReport { synced: request.sync })
    }

    async fn thaw(&self, ThawRequest { token }: ThawRequest) -> Result<(), Failure> {
        let other =
            self.token.borrow().as_ref().is_some_and(|held| token.is_some_and(|token| token != *held));
        if other {
            return Err(Failure::new(ErrorCode::ExecFailed, "frozen for another copy"));
        }
        self.token.send_replace(None);
        Ok(())
    }

    async fn until_thawed(&self) {
        let _ = self.token.subscribe().wait_for(Option::is_none).await;
    }

    async fn rest(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn run(&self, _: &str, name: &str, _: Vec<u8>) -> Result<Vec<u8>, Failure> {
        Err(Failure::new(ErrorCode::UnknownPath, name))
    }

    async fn run_streamed(&self, name: &str, _: Bytes, _: Content) -> Result<(Vec<u8>, Content), Failure> {
        Err(Failure::new(ErrorCode::UnknownPath, name))
    }

    fn start(&self, _: &str, _: RunCommand) -> Result<Events, Failure> {
        Ok(Box::pin(futures_util::stream::empty()))
    }

    fn attach(&self, _: &str, _: u64, _: u64) -> Result<Events, Failure> {
        Ok(Box::pin(futures_util::stream::empty()))
    }

    fn cancel(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }
}

fn freeze(token: &str, sync: bool) -> FreezeRequest {
    FreezeRequest { token: token.to_owned(), sync }
}

#[tokio::test]
async fn a_freeze_is_ended_by_its_own_token_or_by_none() {
    let frozen = FreezingGuest::new(Behaviour::Honest);
    let guest = frozen.connect().await;
    guest.thaw(Some("copy_1")).await.expect("nothing was frozen");
    guest.freeze(&freeze("copy_1", true)).await.expect("a freeze");
    for refused in [guest.freeze(&freeze("copy_2", false)).await, guest.thaw(Some("copy_2")).await]
        .map(Result::unwrap_err)
    {
        assert_eq!(refused.code(), ErrorCode::ExecFailed);
    }
    // The clock of a VM that comes from the disk is set while it is frozen.
    guest.set_clock(&TimeAndSeed::now()).await.expect("a report");
    guest.thaw(Some("copy_1")).await.expect("a thaw");
    guest.freeze(&freeze("copy_2", false)).await.expect("a freeze");
    // A lost connection thaws nothing: a copy begins with one.
    drop(guest);
    assert_eq!(frozen.token.borrow().as_deref(), Some("copy_2"));
    frozen.connect().await.thaw(None).await.expect("a thaw");
    assert_eq!(*frozen.token.borrow(), None);
}

#[tokio::test]
async fn programs_and_operations_wait_for_the_thaw() {
    let guest = FreezingGuest::new(Behaviour::Honest).connect().await;
    guest.freeze(&freeze("copy_1", false)).await.expect("a freeze");
    let call = command("true");
    let (call, start) = (guest.call(&call), guest.start(&call));
    tokio::pin!(call, start);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut call).await.is_err());
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut start).await.is_err());
    // Output is read and commands are killed meanwhile.
    let mut output = guest.attach("exec_1", 0, 0, DEADLINE).await.expect("a stream");
    assert!(output.next().await.is_none_or(|event| event.is_err()), "it has no events");
    guest.thaw(None).await.expect("a thaw");
    assert_eq!(call.await.expect_err("a refusal").code(), ErrorCode::UnknownPath);
    drop(start.await.expect("a stream"));
}

/// A copy of the VM begins with a new host. What waited for the old one would run in both.
#[tokio::test]
async fn what_waited_for_the_thaw_ends_with_its_host() {
    for host_changes in [true, false] {
        let fixture = Fixture::new();
        let old = fixture.connect().await;
        fixture.frozen.send_replace(true);
        let (call, start) = (command("touch called"), command("touch started"));
        {
            let (call, start) = (old.call(&call), old.start_detached("exec_held", &start));
            let both = async { tokio::join!(call, start) };
            tokio::pin!(both);
            assert!(tokio::time::timeout(Duration::from_millis(200), &mut both).await.is_err());
            let new = if host_changes { fixture.connect().await } else { old.clone() };
            fixture.frozen.send_replace(false);
            if !host_changes {
                let (call, start) = both.await;
                call.expect("it runs");
                start.expect("it starts");
            }
            new.call(&command("touch new")).await.expect("it runs");
            assert!(fixture.dir.path().join("new").exists());
            let unknown = new.attach("exec_held", 0, 0, DEADLINE).await.is_err();
            assert_eq!(unknown, host_changes);
        }
        assert_eq!(fixture.dir.path().join("called").exists(), !host_changes);
    }
}

#[tokio::test]
async fn the_error_of_a_guest_passes_and_the_connection_stays() {
    let slow = Behaviour::Refuses(ErrorCode::GuestTimeout);
    for (behaviour, code) in [
        (slow, ErrorCode::GuestTimeout),
        (Behaviour::Refuses(ErrorCode::ExecFailed), ErrorCode::ExecFailed),
        // What concerns keys or the machine is not the guest's to say.
        (Behaviour::Refuses(ErrorCode::TokenExpired), ErrorCode::GuestTimeout),
        (Behaviour::DoesNotSync, ErrorCode::GuestTimeout),
    ] {
        let guest = FreezingGuest::new(behaviour).connect().await;
        let refused = guest.freeze(&freeze("copy_1", true)).await.expect_err("a refusal");
        assert_eq!(refused.code(), code, "{behaviour:?}");
        guest.thaw(Some("copy_1")).await.expect("the connection stays");
    }
}

#[tokio::test]
async fn an_agent_of_an_earlier_release_is_recognised_by_its_error() {
    // The default of the trait is what an agent without these routes answers.
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let refused = guest.freeze(&freeze("copy_1", false)).await.expect_err("a refusal");
    assert!(
        matches!(&refused, Error::Refused(failure) if failure.code == ErrorCode::UnknownRoute),
        "{refused}"
    );
    let refused = guest.thaw(None).await.expect_err("a refusal");
    assert_eq!(refused.code(), ErrorCode::UnknownRoute);
    assert_eq!(guest.call(&command("echo on")).await.expect("it runs").stdout, "on\n");
}

#[tokio::test]
async fn a_guest_that_never_answers_is_given_up_and_the_connection_stays() {
    let guest = FreezingGuest::new(Behaviour::Silent).connect().await;
    let request = freeze("copy_1", false);
    let call = guest.freeze(&request);
    tokio::pin!(call);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut call).await.is_err());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    let late = call.await.expect_err("no answer");
    assert_eq!(late.code(), ErrorCode::GuestTimeout);
    guest.thaw(None).await.expect("the connection stays");
}

/// Answers the first request with the head and body of HTTP/2 frames for the stream 1.
async fn answer_first_request(mut stream: UnixStream, body: &[u8]) -> std::io::Result<()> {
    let (mut scanner, mut received) = (Scanner::default(), Vec::new());
    let mut buffer = vec![0; 4096];
    let marker = loop {
        let count = stream.read(&mut buffer).await?;
        if let Some((marker, _)) = scanner.feed(&buffer[..count], &mut received) {
            break marker;
        }
    };
    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
    stream.write_all(&[marker.to_bytes().as_slice(), SETTINGS].concat()).await?;
    // The host sends its preface and one request, which has a body.
    let mut asked = Vec::new();
    while !asked.windows(8).any(|part| part == b"\"token\":") {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        asked.extend_from_slice(&buffer[..count]);
    }
    // `:status 200`, then the body, which ends the stream.
    let mut answer = b"\0\0\x01\x01\x04\0\0\0\x01\x88".to_vec();
    answer.extend_from_slice(&[0, 0, u8::try_from(body.len()).expect("short"), 0, 1, 0, 0, 0, 1]);
    answer.extend_from_slice(body);
    stream.write_all(&answer).await?;
    // Silent until the host hangs up.
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

#[tokio::test]
async fn nonsense_is_no_freeze() {
    let frozen = async |body: &'static [u8], sync| {
        let (host, guest) = UnixStream::pair().expect("a pair");
        tokio::spawn(answer_first_request(guest, body));
        let guest = Guest::connect(host, DEADLINE).await.expect("a connection");
        let answer = guest.freeze(&freeze("copy_1", sync)).await;
        assert!(!guest.is_closed());
        answer
    };
    // The control: this guest is understood.
    frozen(br#"{"synced":true}"#, true).await.expect("a freeze");
    frozen(br#"{"synced":false,"later":[1]}"#, false).await.expect("a freeze");
    let nonsense: [&[u8]; 8] =
        [b"", b"42", b"null", b"{}", b"\xFF\xFE", br#"{"synced":"yes"}"#, br#"{"synced":true"#, b"[[[[[[[["];
    for body in nonsense {
        let error = frozen(body, false).await.expect_err("nonsense");
        assert!(matches!(error, Error::Malformed(_)), "{}: {error}", body.escape_ascii());
    }
}
