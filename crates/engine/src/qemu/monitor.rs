//! The QEMU Machine Protocol: JSON, a message a line (QEMU's `docs/interop/qmp-spec`).

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

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Map, Value, json};
use tokio::{
    io::Interest,
    net::UnixStream,
    sync::{broadcast, oneshot, watch},
    task::AbortHandle,
    time::timeout,
};

use crate::{Error, machine::VmmEnd};

/// A guest cannot make QEMU say more than this in one message; what is longer is no QEMU.
const MAX_LINE_BYTES: usize = 1 << 20;
/// An answer takes milliseconds; under full load of the machine seconds.
const PATIENCE: Duration = Duration::from_secs(30);

type Waiting = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

/// A client of one monitor.
pub(super) struct Monitor {
    stream: Arc<UnixStream>,
    next: AtomicU64,
    shared: Arc<Shared>,
    writer: tokio::sync::Mutex<()>,
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
    waiting: Mutex<Option<Waiting>>,
    events: broadcast::Sender<String>,
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
        let stream = Arc::new(stream);
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Some(HashMap::new())),
            events: broadcast::channel(64).0,
            end: watch::Sender::new(End::default()),
        });
        let reader = tokio::spawn(read(stream.clone(), shared.clone())).abort_handle();
        let monitor =
            Self { stream, next: AtomicU64::new(1), shared, writer: tokio::sync::Mutex::new(()), reader };
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
        self.send(line.as_bytes(), descriptor.as_ref().map(AsFd::as_fd)).await?;
        match timeout(PATIENCE, answer).await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(reason))) => Err(Error::Refused { command, reason }),
            Ok(Err(_)) => Err(Error::MonitorGone(format!("`{command}` was not answered"))),
            Err(_) => Err(Error::TimedOut { what: "answer its monitor", seconds: PATIENCE.as_secs() }),
        }
    }

    /// Events from here on, by name.
    pub(super) fn events(&self) -> broadcast::Receiver<String> {
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

    async fn send(&self, mut bytes: &[u8], mut descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        // One command after the other: a half-written one must not be interleaved.
        let _turn = self.writer.lock().await;
        while !bytes.is_empty() {
            let sent = self
                .stream
                .async_io(Interest::WRITABLE, || send_once(&self.stream, bytes, descriptor))
                .await
                .map_err(|error| Error::MonitorGone(error.to_string()))?;
            descriptor = None;
            bytes = &bytes[sent..];
        }
        Ok(())
    }
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

async fn read(stream: Arc<UnixStream>, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    while read_some(&stream, &mut buffer).await {
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            if let Ok(Value::Object(message)) = serde_json::from_slice(&line) {
                shared.take(message);
            }
        }
        if buffer.len() > MAX_LINE_BYTES {
            break;
        }
    }
    shared.waiting().take();
    shared.end.send_modify(|end| end.gone = true);
}

/// Whether anything came.
async fn read_some(stream: &UnixStream, buffer: &mut Vec<u8>) -> bool {
    loop {
        if stream.readable().await.is_err() {
            return false;
        }
        match stream.try_read_buf(buffer) {
            Ok(read) => return read > 0,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
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

    fn take(&self, mut message: Map<String, Value>) {
        if let Some(Value::String(event)) = message.remove("event") {
            if event == "SHUTDOWN" {
                let said = end_said(&message);
                self.end.send_modify(|end| end.said = said);
            }
            // Nobody listening is the usual case.
            let _ = self.events.send(event);
            return;
        }
        let Some(id) = message.get("id").and_then(Value::as_u64) else { return };
        let answer = match (message.remove("return"), message.remove("error")) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(error["desc"].as_str().unwrap_or("no reason given").to_owned()),
            (None, None) => Err("neither an answer nor an error".to_owned()),
        };
        let sender = self.waiting().as_mut().and_then(|waiting| waiting.remove(&id));
        if let Some(sender) = sender {
            // The caller may have gone away.
            let _ = sender.send(answer);
        }
    }
}

fn end_said(event: &Map<String, Value>) -> Option<VmmEnd> {
    match event.get("data")?.get("reason")?.as_str()? {
        "guest-shutdown" | "guest-reset" => Some(VmmEnd::Poweroff),
        "guest-panic" => Some(VmmEnd::Panic),
        _ => Some(VmmEnd::Asked),
    }
}
