//! A client of the QEMU Machine Protocol: JSON, one message per line (QEMU's `docs/interop/qmp-spec`).
//!
//! A compromised VMM may send anything at any rate. So lines have a size limit, each line consumes Tokio's cooperative
//! budget of the task, and the first invalid message closes the connection.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg, shutdown};
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
    task::{AbortHandle, coop::consume_budget},
    time::timeout,
};

use crate::{Error, machine::VmmEnd};

/// Maximum length of a line with its end. Answers to the commands used here have a few kilobytes.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Maximum length of an event's name. QEMU's have about thirty bytes.
const MAX_EVENT_BYTES: usize = 64;
/// Time limit of an answer, which takes milliseconds, or seconds on an overloaded machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

type PendingCommands = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

/// A connection to one monitor.
pub(super) struct Monitor {
    next: AtomicU64,
    shared: Arc<Shared>,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    reader: AbortHandle,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // The task would keep the stream open, and QEMU serves one client at a time.
        self.reader.abort();
    }
}

/// State that the reading task updates.
struct Shared {
    /// `None` after the connection is closed.
    pending: Mutex<Option<PendingCommands>>,
    events: watch::Sender<()>,
    end: watch::Sender<ConnectionState>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ConnectionState {
    closed: bool,
    end_reason: Option<VmmEnd>,
}

impl Monitor {
    /// Spawns the reading task and completes the capabilities negotiation.
    pub(super) async fn open(stream: UnixStream) -> Result<Self, Error> {
        let (readable, writable) = stream.into_split();
        let shared = Arc::new(Shared {
            pending: Mutex::new(Some(HashMap::new())),
            events: watch::Sender::default(),
            end: watch::Sender::new(ConnectionState::default()),
        });
        let reader = tokio::spawn(read(readable, shared.clone())).abort_handle();
        let writer = tokio::sync::Mutex::new(writable);
        let monitor = Self { next: AtomicU64::new(1), shared, writer, reader };
        monitor.call("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// Runs a command and returns its result.
    pub(super) async fn call(&self, command: &'static str, arguments: Value) -> Result<Value, Error> {
        self.call_with(command, arguments, None).await
    }

    /// Runs a command with an attached descriptor.
    pub(super) async fn call_with(
        &self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<OwnedFd>,
    ) -> Result<Value, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        match self.shared.pending().as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(Error::MonitorClosed(format!("`{command}` was not sent"))),
        };
        // The guard forgets the command also if the future is dropped before the answer comes.
        let _forget = PendingGuard { shared: &self.shared, id };
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        let exchange = async {
            self.send(line.as_bytes(), descriptor.as_ref().map(AsFd::as_fd)).await?;
            Ok(answer.await)
        };
        match timeout(ANSWER_TIMEOUT, exchange).await {
            Ok(Ok(Ok(Ok(value)))) => Ok(value),
            Ok(Ok(Ok(Err(reason)))) => Err(Error::Refused { command, reason }),
            Ok(Ok(Err(_))) => Err(Error::MonitorClosed(format!("`{command}` was not answered"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::TimedOut { what: "answer its monitor", seconds: ANSWER_TIMEOUT.as_secs() }),
        }
    }

    /// Notified of each later event.
    pub(super) fn events(&self) -> watch::Receiver<()> {
        self.shared.events.subscribe()
    }

    /// Waits until the connection is closed, and returns the reason that the VMM reported for its end.
    pub(super) async fn closed(&self) -> Option<VmmEnd> {
        let mut end = self.shared.end.subscribe();
        match end.wait_for(|end| end.closed).await {
            Ok(end) => end.end_reason,
            Err(_) => None,
        }
    }

    async fn send(&self, bytes: &[u8], mut descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        // Commands are written one after the other, never interleaved.
        let writer = self.writer.lock().await;
        let mut sending = CommandWrite { stream: (*writer).as_ref(), bytes, sent: 0 };
        while sending.sent < bytes.len() {
            let sent = sending.stream.async_io(Interest::WRITABLE, || {
                send_once(sending.stream, &bytes[sending.sent..], descriptor)
            });
            sending.sent += sent.await.map_err(|error| Error::MonitorClosed(error.to_string()))?;
            descriptor = None;
        }
        Ok(())
    }
}

/// A command that is being written. If dropped after a partial write, it closes the connection: the next command would
/// be parsed as the rest of this one.
struct CommandWrite<'a> {
    stream: &'a UnixStream,
    bytes: &'a [u8],
    sent: usize,
}

impl Drop for CommandWrite<'_> {
    fn drop(&mut self) {
        if (1..self.bytes.len()).contains(&self.sent) {
            shut_down_socket(self.stream);
        }
    }
}

/// Shuts the socket down in both directions, for all copies of its descriptor.
fn shut_down_socket(stream: &UnixStream) {
    // The only possible error is that the other side closed it before.
    let _ = shutdown(stream, Shutdown::Both);
}

fn send_once(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

async fn read(stream: OwnedReadHalf, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limited = &mut (&mut stream).take(MAX_LINE_BYTES as u64);
        // A line without its end exceeds the limit or was cut off.
        let is_whole = limited.read_until(b'\n', &mut line).await.is_ok() && line.ends_with(b"\n");
        if !is_whole || !shared.handle_message(&line) {
            break;
        }
        // Buffered lines are read without waiting, so the task yields here.
        consume_budget().await;
    }
    shut_down_socket(stream.get_ref().as_ref());
    shared.pending().take();
    shared.end.send_modify(|end| end.closed = true);
}

/// Removes a pending command on drop.
struct PendingGuard<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.shared.pending().as_mut() {
            waiting.remove(&self.id);
        }
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Option<PendingCommands>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a received line. `false` if it is not a valid message.
    fn handle_message(&self, line: &[u8]) -> bool {
        let Ok(mut message) = serde_json::from_slice::<Map<String, Value>>(line) else { return false };
        if let Some(event) = message.remove("event") {
            return event.as_str().is_some_and(|event| self.handle_event(event, &message));
        }
        let Some(id) = message.get("id").map(Value::as_u64) else {
            // The greeting, or QEMU's answer to invalid input.
            return message.contains_key("QMP") || message.contains_key("error");
        };
        let answer = match (message.remove("return"), message.remove("error")) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(error["desc"].as_str().unwrap_or("no reason given").to_owned()),
            (None, None) => return false,
        };
        let sender = id.and_then(|id| self.pending().as_mut()?.remove(&id));
        if let Some(sender) = sender {
            // Fails only if the caller is gone.
            let _ = sender.send(answer);
        }
        true
    }

    fn handle_event(&self, event: &str, message: &Map<String, Value>) -> bool {
        if event.len() > MAX_EVENT_BYTES {
            return false;
        }
        if event == "SHUTDOWN" {
            let reason = end_reason(message);
            self.end.send_modify(|end| end.end_reason = reason);
        }
        self.events.send_replace(());
        true
    }
}

fn end_reason(event: &Map<String, Value>) -> Option<VmmEnd> {
    match event.get("data")?.get("reason")?.as_str()? {
        "guest-shutdown" | "guest-reset" => Some(VmmEnd::Poweroff),
        "guest-panic" => Some(VmmEnd::Panic),
        _ => Some(VmmEnd::HostRequest),
    }
}
