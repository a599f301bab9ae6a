//! One connection of a host to a guest that sends arbitrary bytes. Shared with the fuzz target.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use skep_api::{
    ErrorCode, Failure,
    exec::{ExecEvent, ExecExit, RunCommand, Stdin},
};
use skep_channel::{
    Content, Error, Guest, HandOut, HandOutReport, Identity, IdentityReport, TimeAndSeed,
    guest::{Events, Handler, serve},
    marker::Marker,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

/// Much longer than any answer takes. A session that takes longer has hung.
const HANG_LIMIT: Duration = Duration::from_secs(30);

/// How a guest answers the host's marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Echo {
    /// Echoes it.
    Right,
    /// Echoes it, and again after everything else.
    Twice,
    /// Echoes it after the first half of it.
    AfterHalf,
    /// Sends a different marker.
    Other,
    /// Echoes it only after everything else.
    Late,
}

/// What a guest sends before it hangs up.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Sent before the marker.
    pub(crate) early: Vec<u8>,
    pub(crate) echo: Echo,
    /// Sent after the marker.
    pub(crate) late: Vec<u8>,
    /// Whether `late` is sent only after the host's request, as an answer is.
    pub(crate) waits: bool,
    /// Whether the host reads a stream of events or waits for one answer.
    pub(crate) streamed: bool,
}

/// Runs a session with this guest. Returns `Ok` if the host accepted the answer.
///
/// # Panics
/// The host waits for something that can no longer arrive.
pub(crate) async fn play(script: &Script) -> Result<(), Error> {
    let (host, guest) = UnixStream::pair().expect("a pair");
    let playing = play_guest(guest, script);
    let ((), outcome) = tokio::join!(playing, async {
        timeout(HANG_LIMIT, play_host(host, script.streamed)).await.expect("the host hangs")
    });
    outcome
}

async fn play_guest(mut guest: UnixStream, script: &Script) {
    let mut marker = [0; Marker::BYTES];
    if guest.read_exact(&mut marker).await.is_err() {
        return;
    }
    let half = &marker[..Marker::BYTES / 2];
    let mut sent = script.early.clone();
    match script.echo {
        Echo::Right | Echo::Twice => sent.extend_from_slice(&marker),
        Echo::AfterHalf => sent.extend([half, &marker].concat()),
        Echo::Other => sent.extend(Marker::new([7; 32]).to_bytes()),
        Echo::Late => {}
    }
    if script.waits && !matches!(script.echo, Echo::Other | Echo::Late) {
        let sent = std::mem::take(&mut sent);
        if guest.write_all(&sent).await.is_err() || !wait_for_request(&mut guest).await {
            return;
        }
    }
    sent.extend_from_slice(&script.late);
    if matches!(script.echo, Echo::Twice | Echo::Late) {
        sent.extend_from_slice(&marker);
    }
    // The host may hang up before everything is sent.
    if guest.write_all(&sent).await.is_ok() {
        let _ = guest.shutdown().await;
    }
    let mut rest = [0; 4096];
    while guest.read(&mut rest).await.is_ok_and(|count| count > 0) {}
}

/// Reads up to the host's request. Returns `false` if the host hung up.
async fn wait_for_request(guest: &mut UnixStream) -> bool {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    let end = b"20000}";
    while !request.windows(end.len()).any(|window| window == end) {
        match guest.read(&mut buffer).await {
            Ok(count @ 1..) => request.extend_from_slice(&buffer[..count]),
            _ => return false,
        }
    }
    true
}

async fn play_host(stream: UnixStream, streamed: bool) -> Result<(), Error> {
    let guest = Guest::connect(stream, HANG_LIMIT).await?;
    let command = RunCommand {
        command: "true".to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: 20_000,
    };
    if !streamed {
        return guest.call(&command).await.map(drop);
    }
    let mut events = guest.start(&command).await?;
    while let Some(event) = events.next().await {
        event?;
    }
    Ok(())
}

/// What a well-behaved guest sends after its marker, in both kinds of session.
pub(crate) async fn recorded(streamed: bool) -> Vec<u8> {
    let (host, near) = UnixStream::pair().expect("a pair");
    let (far, guest) = UnixStream::pair().expect("a pair");
    tokio::spawn(serve(guest, WellBehavedGuest));
    let (mut from_host, mut to_host) = near.into_split();
    let (mut from_guest, mut to_guest) = far.into_split();
    let upward = tokio::spawn(async move { tokio::io::copy(&mut from_host, &mut to_guest).await });
    let downward = tokio::spawn(async move {
        let (mut sent, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = from_guest.read(&mut buffer).await {
            sent.extend_from_slice(&buffer[..count]);
            if to_host.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
        sent
    });
    play_host(host, streamed).await.expect("a good session");
    upward.abort();
    downward.await.expect("the bytes of the guest").split_off(Marker::BYTES)
}

#[derive(Clone)]
struct WellBehavedGuest;

impl Handler for WellBehavedGuest {
    fn request_limit(&self) -> usize {
        1 << 20
    }

    async fn set_identity(&self, _: Identity) -> Result<IdentityReport, Failure> {
        self.cancel("").map(|()| unreachable!())
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        self.cancel("").map(|()| unreachable!())
    }

    async fn set_clock(&self, _: TimeAndSeed) -> Result<HandOutReport, Failure> {
        self.cancel("").map(|()| unreachable!())
    }

    async fn rest(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn run(&self, _: &str, _: &str, _: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let answer = r#"{"exit_code":0,"signal":null,"stdout":"hi\n","stderr":"","duration_ms":1,"timed_out":false,"truncated":false}"#;
        Ok(answer.as_bytes().to_vec())
    }

    async fn run_streamed(&self, name: &str, _: Bytes, _: Content) -> Result<(Vec<u8>, Content), Failure> {
        Err(Failure::new(ErrorCode::UnknownRoute, name))
    }

    fn start(&self, _: &str, _: RunCommand) -> Result<Events, Failure> {
        let exit: ExecExit = serde_json::from_str(
            r#"{"exit_code":0,"signal":null,"duration_ms":1,"timed_out":false,"truncated":false}"#,
        )
        .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        let events = [(0, ExecEvent::Stdout(Bytes::from_static(b"hi\n"))), (0, ExecEvent::Exit(exit))];
        Ok(Box::pin(futures_util::stream::iter(events)))
    }

    fn attach(&self, id: &str, _: u64, _: u64) -> Result<Events, Failure> {
        self.cancel(id).map(|()| unreachable!())
    }

    fn cancel(&self, _: &str) -> Result<(), Failure> {
        Err(Failure::new(ErrorCode::UnknownExec, "there is none"))
    }
}
