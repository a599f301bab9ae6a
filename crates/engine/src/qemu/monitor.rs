//! The QEMU Machine Protocol: JSON, a message a line (QEMU's `docs/interop/qmp-spec`).
//!
//! A VMM that its guest took over may send anything, as fast as it likes. So a line has a limit, each line counts against the
//! budget that tokio gives a task before others run, and the first line that is no message ends the connection.

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

/// The longest line, with its end. What we ask is answered in a few kilobytes.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The longest name of an event; QEMU's have some thirty bytes.
const MAX_EVENT_BYTES: usize = 64;
/// An answer takes milliseconds; under full load of the machine seconds.
const PATIENCE: Duration = Duration::from_secs(30);

type Waiting = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

/// A client of one monitor.
pub(super) struct Monitor {
    next: AtomicU64,
    shared: Arc<Shared>,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    reader: AbortHandle,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Its task would hold the stream, and QEMU serves one client at a time.
        self.reader.abort();
    }
}

/// What the reading task fills.
struct Shared {
    /// `None` once the connection is gone.
    waiting: Mutex<Option<Waiting>>,
    events: watch::Sender<()>,
    end: watch::Sender<End>,
}

#[derive(Debug, Clone, Copy, Default)]
struct End {
    gone: bool,
    said: Option<VmmEnd>,
}

impl Monitor {
    /// Starts to read, and leaves the negotiation that each connection begins with.
    pub(super) async fn open(stream: UnixStream) -> Result<Self, Error> {
        let (readable, writable) = stream.into_split();
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Some(HashMap::new())),
            events: watch::Sender::default(),
            end: watch::Sender::new(End::default()),
        });
        let reader = tokio::spawn(read(readable, shared.clone())).abort_handle();
        let writer = tokio::sync::Mutex::new(writable);
        let monitor = Self { next: AtomicU64::new(1), shared, writer, reader };
        monitor.call("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// Runs a command and waits for what it returns.
    pub(super) async fn call(&self, command: &'static str, arguments: Value) -> Result<Value, Error> {
        self.call_with(command, arguments, None).await
    }

    /// The same, with a descriptor for the command.
    pub(super) async fn call_with(
        &self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<OwnedFd>,
    ) -> Result<Value, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        match self.shared.waiting().as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(Error::MonitorGone(format!("`{command}` was not sent"))),
        };
        // Also where the caller gives up in between.
        let _forget = Forget { shared: &self.shared, id };
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        let exchange = async {
            self.send(line.as_bytes(), descriptor.as_ref().map(AsFd::as_fd)).await?;
            Ok(answer.await)
        };
        match timeout(PATIENCE, exchange).await {
            Ok(Ok(Ok(Ok(value)))) => Ok(value),
            Ok(Ok(Ok(Err(reason)))) => Err(Error::Refused { command, reason }),
            Ok(Ok(Err(_))) => Err(Error::MonitorGone(format!("`{command}` was not answered"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::TimedOut { what: "answer its monitor", seconds: PATIENCE.as_secs() }),
        }
    }

    /// Changes with each event from here on.
    pub(super) fn events(&self) -> watch::Receiver<()> {
        self.shared.events.subscribe()
    }

    /// Waits until the connection is gone, and tells what the VMM said of its end.
    pub(super) async fn gone(&self) -> Option<VmmEnd> {
        let mut end = self.shared.end.subscribe();
        match end.wait_for(|end| end.gone).await {
            Ok(end) => end.said,
            Err(_) => None,
        }
    }

    async fn send(&self, bytes: &[u8], mut descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        // One command after the other: a half-written one must not be interleaved.
        let writer = self.writer.lock().await;
        let mut sending = Sending { stream: (*writer).as_ref(), bytes, sent: 0 };
        while sending.sent < bytes.len() {
            let sent = sending.stream.async_io(Interest::WRITABLE, || {
                send_once(sending.stream, &bytes[sending.sent..], descriptor)
            });
            sending.sent += sent.await.map_err(|error| Error::MonitorGone(error.to_string()))?;
            descriptor = None;
        }
        Ok(())
    }
}

/// A command on its way. Given up in its middle, it ends the connection: the next one would be read as its rest.
struct Sending<'a> {
    stream: &'a UnixStream,
    bytes: &'a [u8],
    sent: usize,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if (1..self.bytes.len()).contains(&self.sent) {
            hang_up(self.stream);
        }
    }
}

/// Shuts the socket down in both directions, which counts for every copy of its descriptor.
fn hang_up(stream: &UnixStream) {
    // The only error is that the other side has ended it before.
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
        // A line without its end is longer than the limit, or was cut off.
        let is_whole = limited.read_until(b'\n', &mut line).await.is_ok() && line.ends_with(b"\n");
        if !is_whole || !shared.take(&line) {
            break;
        }
        // Lines that are in the buffer already are read without a wait, at which other tasks would run.
        consume_budget().await;
    }
    hang_up(stream.get_ref().as_ref());
    shared.waiting().take();
    shared.end.send_modify(|end| end.gone = true);
}

/// Takes a command out of those that wait.
struct Forget<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.shared.waiting().as_mut() {
            waiting.remove(&self.id);
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what came. `false`: it is no message of the protocol.
    fn take(&self, line: &[u8]) -> bool {
        let Ok(mut message) = serde_json::from_slice::<Map<String, Value>>(line) else { return false };
        if let Some(event) = message.remove("event") {
            return event.as_str().is_some_and(|event| self.take_event(event, &message));
        }
        let Some(id) = message.get("id").map(Value::as_u64) else {
            // The greeting, or what QEMU answers to what it cannot read.
            return message.contains_key("QMP") || message.contains_key("error");
        };
        let answer = match (message.remove("return"), message.remove("error")) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(error["desc"].as_str().unwrap_or("no reason given").to_owned()),
            (None, None) => return false,
        };
        let sender = id.and_then(|id| self.waiting().as_mut()?.remove(&id));
        if let Some(sender) = sender {
            // The caller may have gone away.
            let _ = sender.send(answer);
        }
        true
    }

    fn take_event(&self, event: &str, message: &Map<String, Value>) -> bool {
        if event.len() > MAX_EVENT_BYTES {
            return false;
        }
        if event == "SHUTDOWN" {
            let reason = end_reason(message);
            self.end.send_modify(|end| end.said = reason);
        }
        self.events.send_replace(());
        true
    }
}

fn end_reason(event: &Map<String, Value>) -> Option<VmmEnd> {
    match event.get("data")?.get("reason")?.as_str()? {
        "guest-shutdown" | "guest-reset" => Some(VmmEnd::Poweroff),
        "guest-panic" => Some(VmmEnd::Panic),
        _ => Some(VmmEnd::Asked),
    }
}
