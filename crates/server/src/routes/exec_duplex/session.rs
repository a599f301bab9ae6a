//! The session of one command and its WebSocket.
//!
//! ```text
//! socket ── receive ──► StdinBuffer ── feed ──► command
//!    ▲         └─ signals ───────────────────────►  │
//!    └────────── send ◄── output, acknowledgements ─┘
//! ```
//! The three run concurrently, so that each waits only for its own peer: a caller can send signals even while it does
//! not read the output, or while the command does not read its input.

use std::{convert::Infallible, future::pending, time::Duration};

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use serde::Serialize;
use skep_api::{
    ErrorCode, Failure,
    exec::ExecExit,
    exec_stream::{ExecControl, ExecNotice, StreamId},
};
use skep_channel::ExecControl as Control;
use skep_swarm::{ExecEvent, ExecStream};
use tokio::{
    sync::watch,
    time::{Instant, interval_at, timeout},
};

use super::{super::exec_stream::ExecPlace, stdin::StdinBuffer};
use crate::error::Refusal;

/// Interval of pings, which keep proxies from closing an idle connection and detect a caller that is gone.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long the last messages and the closing handshake may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type Sink = SplitSink<WebSocket, Message>;
type Source = SplitStream<WebSocket>;

pub(super) enum End {
    Exit(ExecExit),
    /// The caller disconnected.
    Disconnected,
    /// The command was refused or aborted.
    Refused(Refusal),
    /// The server is shutting down.
    Closing,
}

/// A running command, and its place.
pub(super) struct Running {
    pub(super) events: ExecStream,
    pub(super) home: ExecPlace,
}

/// How much input the command has read, and whether its input is still open.
#[derive(Debug, Clone, Copy)]
struct StdinProgress {
    bytes: u64,
    open: bool,
}

/// Runs a session until its command ends. `aborted` completes when the caller's key is lost or the server shuts down.
pub(super) async fn run_session(socket: WebSocket, running: Running, aborted: impl Future<Output = End>) {
    let (mut sink, mut source) = socket.split();
    let Running { mut events, home } = running;
    let (control, stdin) = (events.control(), StdinBuffer::default());
    let (taken, mut progress) = watch::channel(StdinProgress { bytes: 0, open: true });
    let end = tokio::select! {
        end = send(&mut sink, &mut events, &mut progress) => match end {
            Err(error) => End::Refused(home.explain(error).await),
            Ok(end) => end,
        },
        end = receive(&mut source, &stdin, &control) => end,
        never = feed(&stdin, &control, &taken) => match never {},
        end = aborted => end,
    };
    let notice = match end {
        End::Disconnected => return,
        End::Exit(exit) => ExecNotice::Exit(exit),
        End::Refused(refusal) => {
            // Ends the command now: the caller may take its time to close the connection.
            drop((events, control));
            error_notice(&refusal)
        }
        End::Closing => error_notice(&detach(events, &home)),
    };
    finish(sink, source, &notice).await;
}

/// Refuses a command before it was started.
pub(super) async fn refuse(socket: WebSocket, refusal: &Refusal) {
    let (sink, source) = socket.split();
    finish(sink, source, &error_notice(refusal)).await;
}

/// Detaches from a command in a VM, which keeps running, and returns the refusal for the caller.
fn detach(events: ExecStream, home: &ExecPlace) -> Refusal {
    let message = match home {
        ExecPlace::Vm(_) => {
            events.detach();
            "the server is shutting down; the command keeps running without further input: reconnect to its output with the \
            id in the message `started`, and the bytes received as offsets"
        }
        ExecPlace::Server => "the server is shutting down, and the command with it; run it again",
    };
    Refusal::new(ErrorCode::ShuttingDown, message)
}

/// Sends output and acknowledgements until the command ends or the caller disconnects.
async fn send(
    sink: &mut Sink,
    events: &mut ExecStream,
    progress: &mut watch::Receiver<StdinProgress>,
) -> Result<End, skep_channel::Error> {
    let started = ExecNotice::Started { id: events.id().to_owned() };
    if sink.send(text_message(&started)).await.is_err() {
        return Ok(End::Disconnected);
    }
    let mut ping = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    loop {
        let message = tokio::select! {
            event = events.next() => match event {
                Some(Ok(ExecEvent::Stdout(bytes))) => output_message(StreamId::Stdout, &bytes),
                Some(Ok(ExecEvent::Stderr(bytes))) => output_message(StreamId::Stderr, &bytes),
                Some(Ok(ExecEvent::Exit(exit))) => return Ok(End::Exit(exit)),
                Some(Err(error)) => return Err(error),
                None => return Ok(End::Refused(Refusal::internal("a command's events ended without its exit"))),
            },
            Ok(()) = progress.changed() => {
                let StdinProgress { bytes, open } = *progress.borrow_and_update();
                text_message(&ExecNotice::Stdin { taken: bytes, open })
            }
            _ = ping.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            return Ok(End::Disconnected);
        }
    }
}

/// Handles the messages of the caller.
async fn receive(source: &mut Source, stdin: &StdinBuffer, control: &Control) -> End {
    loop {
        let message = match source.next().await {
            Some(Ok(message)) => message,
            // A message that is too long is also an error here.
            Some(Err(_)) | None => return End::Disconnected,
        };
        let handled = match message {
            Message::Binary(bytes) => handle_input(&bytes, stdin).await,
            Message::Text(text) => handle_control(&text, stdin, control).await,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => return End::Disconnected,
        };
        if let Err(failure) = handled {
            return End::Refused(failure.into());
        }
    }
}

async fn handle_input(message: &[u8], stdin: &StdinBuffer) -> Result<(), Failure> {
    let wrong = |message: &str| Err(Failure::new(ErrorCode::MalformedBody, message));
    match message.split_first() {
        Some((first, _)) if StreamId::from_byte(*first) != Some(StreamId::Stdin) => {
            wrong("a binary message begins with 0, the number of the standard input, followed by the bytes")
        }
        None => wrong("an empty binary message; each begins with 0, the number of the standard input"),
        Some(_) if stdin.is_ended() => wrong("input after `end_of_stdin`"),
        Some((_, bytes)) => {
            stdin.push(bytes).await;
            Ok(())
        }
    }
}

async fn handle_control(text: &str, stdin: &StdinBuffer, control: &Control) -> Result<(), Failure> {
    let wrong = |error: serde_json::Error| {
        let message = format!("a text message must be `signal` with a `name`, or `end_of_stdin`: {error}");
        Failure::new(ErrorCode::MalformedBody, message)
    };
    match serde_json::from_str(text).map_err(wrong)? {
        ExecControl::EndOfStdin {} => stdin.end(),
        ExecControl::Signal { name } => {
            if let Err(error) = control.signal(name).await {
                // The event stream of the command fails too, with the reason.
                tracing::debug!(%error, "a signal could not be sent");
            }
        }
    }
    Ok(())
}

/// Passes the input on as fast as the command reads it.
async fn feed(stdin: &StdinBuffer, control: &Control, taken: &watch::Sender<StdinProgress>) -> Infallible {
    while let Some(piece) = stdin.next().await {
        let length = piece.len() as u64;
        // On an error the event stream of the command fails too, with the reason.
        let open = control.write_stdin(piece).await.unwrap_or(false);
        taken.send_modify(|taken| {
            taken.open = open;
            taken.bytes += if open { length } else { 0 };
        });
        if !open {
            stdin.close();
        }
    }
    if let Err(error) = control.end_stdin().await {
        tracing::debug!(%error, "the input of a command could not be ended");
    }
    pending().await
}

/// Sends the last message and closes. Messages of the caller are read and discarded meanwhile: closing a socket with
/// unread bytes resets the connection, and the caller might never get the last message.
async fn finish(mut sink: Sink, mut source: Source, notice: &ExecNotice) {
    let code = match notice {
        ExecNotice::Exit(_) => close_code::NORMAL,
        _ => close_code::POLICY,
    };
    let last = async {
        sink.send(text_message(notice)).await?;
        sink.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await
    };
    let drained = async { while let Some(Ok(_)) = source.next().await {} };
    let _ = timeout(CLOSE_TIMEOUT, async { tokio::join!(last, drained) }).await;
}

fn output_message(stream: StreamId, bytes: &[u8]) -> Message {
    let mut message = BytesMut::with_capacity(1 + bytes.len());
    message.put_u8(stream.byte());
    message.put_slice(bytes);
    Message::Binary(message.freeze())
}

fn text_message(notice: &impl Serialize) -> Message {
    // These types always serialize.
    Message::Text(serde_json::to_string(notice).unwrap_or_default().into())
}

fn error_notice(refusal: &Refusal) -> ExecNotice {
    ExecNotice::Error(refusal.log_and_end_stream("a command"))
}
