//! The guest's end: answers whoever is at the other side of the stream now.

mod link;
mod routes;

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

use crate::{Content, Ground, HandOut, HandOutReport, Identity, IdentityReport};
use link::{Link, Session};

/// The events of a command, each with the offset of its first byte in its stream.
pub type Events = Pin<Box<dyn Stream<Item = (u64, ExecEvent)> + Send>>;

/// What the guest does about each request. A request whose caller went away is dropped where it waits.
#[warn(missing_docs)]
pub trait Handler: Clone + Send + Sync + 'static {
    /// The longest body that there is memory for, in bytes.
    fn request_limit(&self) -> usize;
    /// The handler of a call on this ground. A guest has one owner, and no ground but its own.
    fn on(&self, ground: Ground) -> Result<Self, Failure> {
        let message = format!("this place has roots of its own, and none for {} others", ground.roots.len());
        Err(Failure::new(ErrorCode::PathOutsideRoots, message))
    }
    /// Becomes another machine, and tells what it reads back.
    fn take_identity(
        &self,
        identity: Identity,
    ) -> impl Future<Output = Result<IdentityReport, Failure>> + Send;
    /// Becomes somebody's. Refused where there is no identity.
    fn hand_out(&self, hand_out: HandOut) -> impl Future<Output = Result<HandOutReport, Failure>> + Send;
    /// Waits until nothing is left to do ahead of the next command.
    fn rest(&self) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Comes to rest before the snapshot.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Does the operation of this name, and tells its answer as JSON. `call` is this call's id.
    fn run(
        &self,
        call: &str,
        name: &str,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, Failure>> + Send;
    /// Does the operation of this name with these bytes, and tells its answer as JSON, with the bytes behind it.
    fn run_streamed(
        &self,
        name: &str,
        request: Bytes,
        content: Content,
    ) -> impl Future<Output = Result<(Vec<u8>, Content), Failure>> + Send;
    /// Starts a command under this id.
    fn start(&self, id: &str, command: RunCommand) -> Result<Events, Failure>;
    /// Reads a command's output from these offsets.
    fn attach(&self, id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Events, Failure>;
    /// Ends a command.
    fn cancel(&self, id: &str) -> Result<(), Failure>;
}

/// Serves one host after the other, until the stream ends.
///
/// # Errors
/// What the stream fails with. Nothing that the host sends is an error here.
pub async fn serve<S, H>(stream: S, handler: H) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let link = Link::new(stream);
    while let Some(marker) = link.next_marker().await? {
        let mut session = Session::new(&link);
        session.write_all(&marker.to_bytes()).await?;
        session.flush().await?;
        let handler = handler.clone();
        let service = service_fn(move |request| {
            let handler = handler.clone();
            async move { Ok::<_, Infallible>(routes::answer(handler, request).await) }
        });
        let mut settings = http2::Builder::new(TokioExecutor::new());
        settings
            // A command with streamed input may have two requests open: its events, and input that it does not read.
            .max_concurrent_streams(512)
            // However many callers go away at once, the host is no attacker, and its only connection must not end.
            .max_pending_accept_reset_streams(usize::MAX)
            .max_local_error_reset_streams(None)
            .max_header_list_size(16 * 1024)
            .max_send_buf_size(64 * 1024)
            .initial_stream_window_size(256 * 1024)
            // Room for requests beside as many uploads as the host has at once, each with its window full.
            .initial_connection_window_size(4 * 1024 * 1024);
        link.until_superseded(settings.serve_connection(TokioIo::new(session), service)).await;
    }
    Ok(())
}
