//! The guest end of the channel: serves the host that is currently connected.

mod routes;
mod shared_stream;

use std::{convert::Infallible, future::Future, io, pin::Pin};

use bytes::Bytes;
use futures_util::Stream;
use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use skep_api::{
    ErrorCode, Failure,
    exec::{ExecEvent, RunCommand},
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::{
    AccountRoots, Content, FreezeReport, FreezeRequest, GuestUsage, HandOut, HandOutReport, Identity,
    IdentityReport, ThawRequest, TimeAndSeed,
};
use shared_stream::{Session, SharedStream};

/// The events of a command, each with the offset of its first byte in its stream.
pub type Events = Pin<Box<dyn Stream<Item = (u64, ExecEvent)> + Send>>;

/// Handles the requests of a host. A request whose caller goes away is dropped while it waits.
#[warn(missing_docs)]
pub trait Handler: Clone + Send + Sync + 'static {
    /// The longest request body that the memory allows, in bytes.
    fn request_limit(&self) -> usize;
    /// Returns the handler for a request with account roots. A VM has a single owner and refuses such requests.
    fn for_account(&self, account_roots: AccountRoots) -> Result<Self, Failure> {
        let message = format!(
            "this workspace has a single owner and takes no {} other roots",
            account_roots.roots.len()
        );
        Err(Failure::new(ErrorCode::PathOutsideRoots, message))
    }
    /// Sets the identity of the VM, and reports what it reads back.
    fn set_identity(
        &self,
        identity: Identity,
    ) -> impl Future<Output = Result<IdentityReport, Failure>> + Send;
    /// Assigns the VM to its owner. Fails if it has no identity.
    fn hand_out(&self, hand_out: HandOut) -> impl Future<Output = Result<HandOutReport, Failure>> + Send;
    /// Sets the clock of a VM that stood still. Fails if it has no identity.
    fn set_clock(&self, moment: TimeAndSeed) -> impl Future<Output = Result<HandOutReport, Failure>> + Send;
    /// Stops all programs of the VM.
    fn freeze(&self, _request: FreezeRequest) -> impl Future<Output = Result<FreezeReport, Failure>> + Send {
        std::future::ready(Err(not_in_a_guest()))
    }
    /// Lets all programs of the VM run again. Succeeds if they do already.
    fn thaw(&self, _request: ThawRequest) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::ready(Err(not_in_a_guest()))
    }
    /// Waits until programs may be started: not while they are frozen.
    fn until_thawed(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
    /// Removes the control groups of ended commands, and leaves other deferred work of the VM the time that it takes.
    fn rest(&self) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Warms up the VM before the snapshot.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send;
    /// The current resource usage inside the guest.
    fn usage(&self) -> Result<GuestUsage, Failure> {
        Err(not_in_a_guest())
    }
    /// Runs the operation of this name and returns its answer as JSON. `call` is the id of the call.
    fn run(
        &self,
        call: &str,
        name: &str,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, Failure>> + Send;
    /// Runs the operation of this name with this content. Returns its answer as JSON, and the content after it.
    fn run_streamed(
        &self,
        name: &str,
        request: Bytes,
        content: Content,
    ) -> impl Future<Output = Result<(Vec<u8>, Content), Failure>> + Send;
    /// Starts a command under this id.
    fn start(&self, id: &str, command: RunCommand) -> Result<Events, Failure>;
    /// Reads the output of a command from these offsets on.
    fn attach(&self, id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Events, Failure>;
    /// Kills a command.
    fn cancel(&self, id: &str) -> Result<(), Failure>;
}

fn not_in_a_guest() -> Failure {
    Failure::new(ErrorCode::UnknownRoute, "this end of the channel is not in a guest")
}

/// Serves one host after the other until the stream ends.
///
/// # Errors
/// An error of the stream. Malformed requests are not errors here.
pub async fn serve<S, H>(stream: S, handler: H) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let shared = SharedStream::new(stream);
    while let Some(marker) = shared.next_marker().await? {
        let mut session = Session::new(&shared);
        session.write_all(&marker.to_bytes()).await?;
        session.flush().await?;
        let handler = handler.clone();
        let service = service_fn(move |request| {
            let handler = handler.clone();
            async move { Ok::<_, Infallible>(routes::answer(handler, request).await) }
        });
        let mut settings = http2::Builder::new(TokioExecutor::new());
        settings
            // A command with streamed input may have two open requests: its events, and input that it does not read.
            .max_concurrent_streams(512)
            // The host is trusted. Its only connection must not end because many callers go away at once.
            .max_pending_accept_reset_streams(usize::MAX)
            .max_local_error_reset_streams(None)
            .max_header_list_size(16 * 1024)
            .max_send_buf_size(64 * 1024)
            .initial_stream_window_size(256 * 1024)
            // Leaves room for other requests beside the most concurrent uploads, each with a full window.
            .initial_connection_window_size(4 * 1024 * 1024);
        shared.until_superseded(settings.serve_connection(TokioIo::new(session), service)).await;
    }
    Ok(())
}
