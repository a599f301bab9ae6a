//! A guest end without a VM, and the stream that successive hosts share.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use skep_api::{ErrorCode, Failure, exec::RunCommand};
use skep_channel::{
    Content, Guest, HandOut, HandOutReport, Identity, IdentityReport, TimeAndSeed,
    guest::{Events, Handler, serve},
};
use skep_harness::ControlGroup;
use skep_workspace::{Output, Place, run_by_name, run_streamed_by_name};
use tokio::{net::UnixStream, sync::watch, task::JoinHandle};

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A guest end without a VM, and the stream that successive hosts share.
pub(crate) struct Fixture {
    pub(crate) group: ControlGroup,
    host: Arc<UnixStream>,
    relay: Mutex<Option<JoinHandle<()>>>,
    pub(crate) dir: tempfile::TempDir,
    /// Whether the guest holds back commands and operations.
    pub(crate) frozen: Arc<watch::Sender<bool>>,
}

#[derive(Clone)]
struct Agent {
    place: Place,
    has_identity: Arc<AtomicBool>,
    frozen: Arc<watch::Sender<bool>>,
}

/// The events of an [`Output`]. Each future borrows the output, so it is kept in the stream's state.
fn events(output: Output) -> Events {
    Box::pin(futures_util::stream::unfold(output, async |mut output| {
        let event = output.next().await?;
        Some((event, output))
    }))
}

impl Handler for Agent {
    fn request_limit(&self) -> usize {
        1 << 20
    }

    async fn set_identity(&self, identity: Identity) -> Result<IdentityReport, Failure> {
        self.has_identity.store(true, Ordering::Relaxed);
        Ok(IdentityReport {
            vm: identity.vm,
            hostname: identity.hostname,
            mac: identity.mac,
            ip: identity.ip,
            prefix_len: identity.prefix_len,
            machine_id: identity.machine_id,
            boot_id: identity.boot_id,
            reseeded: true,
            clock_step_ms: 0.0,
        })
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        if !self.has_identity.load(Ordering::Relaxed) {
            return Err(Failure::new(ErrorCode::ExecFailed, "nobody yet"));
        }
        Ok(HandOutReport { reseeded: true, clock_step_ms: 0.0 })
    }

    async fn set_clock(&self, _: TimeAndSeed) -> Result<HandOutReport, Failure> {
        if !self.has_identity.load(Ordering::Relaxed) {
            return Err(Failure::new(ErrorCode::ExecFailed, "nobody yet"));
        }
        Ok(HandOutReport { reseeded: true, clock_step_ms: 12.5 })
    }

    async fn until_thawed(&self) {
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    async fn rest(&self) -> Result<(), Failure> {
        self.place.commands().remove_ended_groups();
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Err(Failure::new(ErrorCode::ExecFailed, "never at rest"))
    }

    async fn run(&self, call: &str, name: &str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        run_by_name(name, &request, &self.place.for_call(call)).await.map_err(Failure::from)
    }

    async fn run_streamed(
        &self,
        name: &str,
        request: Bytes,
        content: Content,
    ) -> Result<(Vec<u8>, Content), Failure> {
        run_streamed_by_name(name, &request, content, &self.place).await.map_err(Failure::from)
    }

    fn start(&self, id: &str, command: RunCommand) -> Result<Events, Failure> {
        let running = self.place.commands().start(id, &command, &self.place).map_err(Failure::from)?;
        Ok(events(running.attach(0, 0)))
    }

    fn attach(&self, id: &str, stdout: u64, stderr: u64) -> Result<Events, Failure> {
        let running = self.place.commands().find(id).map_err(Failure::from)?;
        Ok(events(running.attach(stdout, stderr)))
    }

    fn cancel(&self, id: &str) -> Result<(), Failure> {
        self.place.commands().find(id).map_err(Failure::from)?.cancel();
        Ok(())
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let group = ControlGroup::of_test("channel");
        let dir = tempfile::tempdir().expect("a directory");
        let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        let place = Place::new("/", dir.path(), env, &group);
        let (host, guest) = UnixStream::pair().expect("a pair");
        let frozen = Arc::new(watch::Sender::new(false));
        let agent = Agent { place, has_identity: Arc::default(), frozen: Arc::clone(&frozen) };
        tokio::spawn(serve(guest, agent));
        Self { group, host: Arc::new(host), relay: Mutex::default(), dir, frozen }
    }

    /// A host end of the shared stream. As with a VM's port, the stream does not end with this host. The previous host
    /// is disconnected, even in the middle of a frame.
    pub(crate) async fn stream(&self) -> UnixStream {
        let before = self.relay.lock().expect("a relay").take();
        if let Some(relay) = before {
            relay.abort();
            let _ = relay.await;
        }
        let (near, far) = UnixStream::pair().expect("a pair");
        let (mut from_host, mut to_host) = far.into_split();
        let (mut reader, mut writer) = (Shared(Arc::clone(&self.host)), Shared(Arc::clone(&self.host)));
        let relay = tokio::spawn(async move {
            tokio::select! {
                _ = tokio::io::copy(&mut from_host, &mut writer) => {}
                _ = tokio::io::copy(&mut reader, &mut to_host) => {}
            }
        });
        *self.relay.lock().expect("a relay") = Some(relay);
        near
    }

    pub(crate) async fn connect(&self) -> Guest {
        Guest::connect(self.stream().await, DEADLINE).await.expect("a connection")
    }
}

/// A stream with several owners.
struct Shared(Arc<UnixStream>);

impl tokio::io::AsyncRead for Shared {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        loop {
            std::task::ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(out.initialize_unfilled()) {
                Ok(count) => {
                    out.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl tokio::io::AsyncWrite for Shared {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        loop {
            std::task::ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
