//! A guest that is spoken to.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use skep_api::{
    AnswerLimit, ErrorCode, ErrorKind, Failure, Operation,
    exec::{ExecEvent, ExecExit, RunCommand},
};
use tokio::{
    net::UnixStream,
    runtime::Handle,
    sync::{Semaphore, watch},
    time::timeout,
};
use ulid::Ulid;

use super::{Error, ExecStream, answer, cancel::CancelOnDrop, line::Line, resync::resync};
use crate::{Ground, HandOut, HandOutReport, Identity, IdentityReport, ground::GROUND, head::Stream};

/// The longest refusal, in bytes.
const REFUSAL_BYTES: usize = 64 << 10;
/// Uploads at once. Each may fill a window of 256 KiB in the guest, whose whole connection has 4 MiB.
const UPLOADS: usize = 8;
/// The longest ground: the guest takes 16 KiB of headers.
const GROUND_BYTES: usize = 12 << 10;
/// How long an identity, a cancellation or the first word of a stream may take.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);
/// How long the guest may take to come to rest: it runs each program once, in emulation.
const SETTLE_LIMIT: Duration = Duration::from_secs(240);
/// How long a broken request waits to learn whether the whole connection is.
const VERDICT: Duration = Duration::from_secs(1);

/// A guest that is spoken to. Cheap to clone; the connection ends with the last clone and the last stream. It hangs up
/// then, unless somebody else holds the socket.
#[derive(Debug, Clone)]
pub struct Guest {
    requests: SendRequest<Stream>,
    closed: watch::Receiver<bool>,
    runtime: Handle,
    /// Room for uploads: the connection's window is every request's.
    uploads: Arc<Semaphore>,
    ground: Option<HeaderValue>,
}

impl Guest {
    /// Finds the beginning of the stream and opens a connection on it. Whoever had one before loses it.
    ///
    /// # Errors
    /// [`Error::Silent`] after `deadline`, [`Error::Ended`] where the stream ends.
    pub async fn connect(stream: UnixStream, deadline: Duration) -> Result<Self, Error> {
        timeout(deadline, Self::open(stream)).await.map_err(|_| Error::Silent(deadline))?
    }

    async fn open(mut stream: UnixStream) -> Result<Self, Error> {
        let early = resync(&mut stream).await?;
        let mut settings = http2::Builder::new(TokioExecutor::new());
        // A stream that nobody reads holds at most its window. Half the connection's is also what the overhead of small
        // unread frames may come to before h2 gives the connection up, and with it the VM: enough for some 30 streams
        // that each wait with a window full of single bytes.
        settings
            .max_header_list_size(16 * 1024)
            // Counted over the connection's whole life, by what arrives on streams that were dropped unread.
            .max_local_error_reset_streams(None)
            .initial_stream_window_size(64 * 1024)
            .initial_connection_window_size(64 * 1024 * 1024);
        let (requests, connection) =
            settings.handshake(TokioIo::new(Line::new(early, stream))).await.map_err(|_| Error::Ended)?;
        let (ended, closed) = watch::channel(false);
        let runtime = Handle::current();
        runtime.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a guest ended");
            }
            ended.send_replace(true);
        });
        Ok(Self { requests, closed, runtime, uploads: Arc::new(Semaphore::new(UPLOADS)), ground: None })
    }

    /// The same, for calls on this ground.
    ///
    /// # Errors
    /// [`Error::Ground`] where it does not fit into a header.
    pub fn on(&self, ground: &Ground) -> Result<Self, Error> {
        let text = serde_json::to_vec(ground).ok().filter(|text| text.len() <= GROUND_BYTES);
        let value = text.and_then(|text| HeaderValue::from_bytes(&text).ok()).ok_or(Error::Ground)?;
        Ok(Self { ground: Some(value), ..self.clone() })
    }

    /// Gives the guest its identity, and returns what it reads back. Compare it with [`IdentityReport::proves`].
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
    pub async fn take_identity(&self, identity: &Identity) -> Result<IdentityReport, Error> {
        let request = request(Method::POST, "/identity", tell(identity)?)?;
        within(CONTROL_LIMIT, self.ask(request, AnswerLimit::SHORT)).await
    }

    /// Makes a guest that has its identity somebody's. Look at [`HandOutReport::proves`].
    ///
    /// # Errors
    /// The guest's own words (it has no identity yet), its end, or its silence.
    pub async fn hand_out(&self, hand_out: &HandOut) -> Result<HandOutReport, Error> {
        let request = request(Method::POST, "/hand-out", tell(hand_out)?)?;
        within(CONTROL_LIMIT, self.ask(request, AnswerLimit::SHORT)).await
    }

    /// Waits until the guest has done all that it does ahead of the next command. A VM that is stopped then goes on
    /// where it is fastest.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
    pub async fn rest(&self) -> Result<(), Error> {
        let request = request(Method::POST, "/rest", Bytes::new())?;
        within(CONTROL_LIMIT, self.ask::<IgnoredAny>(request, AnswerLimit::SHORT)).await.map(drop)
    }

    /// Warms the guest and brings it to rest. Only before a snapshot is taken.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
    pub async fn settle(&self) -> Result<(), Error> {
        let request = request(Method::POST, "/settle", Bytes::new())?;
        within(SETTLE_LIMIT, self.ask::<IgnoredAny>(request, AnswerLimit::SHORT)).await.map(drop)
    }

    /// Does an operation in the guest. Dropped before the answer, it ends the operation there; a connection that is
    /// lost does not.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
    pub async fn call<O: Operation>(&self, operation: &O) -> Result<O::Answer, Error> {
        let mut cancel = CancelOnDrop::new(self, new_id("call"));
        let mut request = request(Method::POST, &format!("/operations/{}", O::NAME), tell(operation)?)?;
        let id = cancel.id().parse().map_err(malformed)?;
        request.headers_mut().insert("skep-call", id);
        let answer = within(operation.time_limit(), self.ask(request, operation.answer_limit())).await;
        // An operation that is merely late goes on in the guest, and nobody waits for it.
        if !matches!(answer, Err(Error::Silent(_))) {
            cancel.disarm();
        }
        answer
    }

    /// Starts a command, whose events come as they happen.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence. Nothing runs then.
    pub async fn start(&self, command: &RunCommand) -> Result<ExecStream, Error> {
        let cancel = CancelOnDrop::new(self, new_id("exec"));
        let request = request(Method::PUT, &format!("/commands/{}", cancel.id()), tell(command)?)?;
        self.stream(request, cancel, (0, 0), command.time_limit()).await
    }

    /// Starts a command under an id of the caller's making, and leaves it to itself: it runs on whoever goes away.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
    pub async fn start_detached(&self, exec_id: &str, command: &RunCommand) -> Result<(), Error> {
        let request = request(Method::PUT, &format!("/commands/{exec_id}"), tell(command)?)?;
        let cancel = CancelOnDrop::disarmed(self, exec_id.to_owned());
        // What it prints is kept in the guest for whoever asks.
        self.stream(request, cancel, (0, 0), command.time_limit()).await.map(drop)
    }

    /// Waits for the end of a command, and takes nothing of its output. It runs on whoever goes away.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
    pub async fn end_of(&self, exec_id: &str, limit: Duration) -> Result<ExecExit, Error> {
        let mut events = self.attach(exec_id, u64::MAX, u64::MAX, limit).await?.outliving();
        while let Some(event) = events.next().await {
            if let ExecEvent::Exit(exit) = event? {
                return Ok(exit);
            }
        }
        Err(Error::Malformed("the events of a command ended before its exit".to_owned()))
    }

    /// Comes back to a command that ends within `limit`, at these offsets. Dropped before the exit, it ends the command too.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
    pub async fn attach(
        &self,
        exec_id: &str,
        stdout_offset: u64,
        stderr_offset: u64,
        limit: Duration,
    ) -> Result<ExecStream, Error> {
        let path = format!("/commands/{exec_id}?stdout={stdout_offset}&stderr={stderr_offset}");
        let request = request(Method::GET, &path, Bytes::new())?;
        let cancel = CancelOnDrop::new(self, exec_id.to_owned());
        self.stream(request, cancel, (stdout_offset, stderr_offset), limit).await
    }

    pub(super) fn uploads(&self) -> &Arc<Semaphore> {
        &self.uploads
    }

    /// Whether the connection is lost.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Waits until the connection is lost.
    pub async fn closed(&self) {
        // The sender only goes with its runtime, and then nothing is open either.
        let _ = self.closed.clone().wait_for(|closed| *closed).await;
    }

    /// Ends a command from where nothing can be awaited.
    pub(super) fn cancel_later(&self, id: String) {
        let guest = self.clone();
        self.runtime.spawn(async move {
            let Ok(request) = request(Method::DELETE, &format!("/commands/{id}"), Bytes::new()) else {
                return;
            };
            let answer = within(CONTROL_LIMIT, guest.ask::<IgnoredAny>(request, AnswerLimit::SHORT)).await;
            // The guest knows nothing of calls that were no commands, or that never reached it.
            if let Err(error) = answer {
                tracing::debug!(%id, %error, "nothing was left to cancel");
            }
        });
    }

    async fn stream(
        &self,
        request: Request<Stream>,
        mut cancel: CancelOnDrop,
        offsets: (u64, u64),
        limit: Duration,
    ) -> Result<ExecStream, Error> {
        let answer = within(CONTROL_LIMIT, self.send(request)).await;
        if !matches!(answer, Ok(_) | Err(Error::Silent(_))) {
            cancel.disarm();
        }
        Ok(ExecStream::new(answer?.into_body(), cancel, offsets, limit))
    }

    async fn ask<A: DeserializeOwned + Send + 'static>(
        &self,
        request: Request<Stream>,
        limit: AnswerLimit,
    ) -> Result<A, Error> {
        let body = self.read(self.send(request).await?.into_body(), limit.bytes).await?;
        answer::parse(body, limit.values).await
    }

    /// The answer's head, or the guest's refusal.
    pub(super) async fn send(&self, mut request: Request<Stream>) -> Result<Response<Incoming>, Error> {
        request.headers_mut().extend(self.ground.clone().map(|ground| (GROUND, ground)));
        let answer = match self.requests.clone().send_request(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.verdict(&error).await),
        };
        if answer.status() == StatusCode::OK {
            return Ok(answer);
        }
        let body = self.read(answer.into_body(), REFUSAL_BYTES).await?;
        let failure: Failure = serde_json::from_slice(&body).map_err(malformed)?;
        if is_of_a_workspace(failure.code) {
            return Err(Error::Refused(failure));
        }
        Err(malformed(format!("a refusal `{}`, which no guest makes: {failure}", failure.code.as_str())))
    }

    async fn read(&self, mut body: Incoming, limit: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => return Err(self.verdict(&error).await),
            };
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(Error::Malformed(format!("an answer of more than {limit} bytes")));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    /// Whether a request broke by itself, or the connection with it.
    async fn verdict(&self, error: &hyper::Error) -> Error {
        match timeout(VERDICT, self.closed()).await {
            Ok(()) => Error::Ended,
            Err(_) => Error::Malformed(format!("a request broke off: {error}")),
        }
    }
}

/// Whether it is a guest's to say. Of keys, of the server and of other VMs it knows nothing; who takes its word for
/// them would tell a caller that its key is revoked.
fn is_of_a_workspace(code: ErrorCode) -> bool {
    let kind = match code.kind() {
        ErrorKind::BadRequest
        | ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::PreconditionFailed
        | ErrorKind::TooLarge
        | ErrorKind::RangeNotSatisfiable
        | ErrorKind::Unprocessable
        | ErrorKind::Internal => true,
        _ => matches!(
            code,
            ErrorCode::PathOutsideRoots
                | ErrorCode::PermissionDenied
                | ErrorCode::RemoteForbidden
                | ErrorCode::DiskFull
                | ErrorCode::FileBusy
        ),
    };
    let elsewhere = [
        ErrorCode::UnknownVm,
        ErrorCode::UnknownTemplate,
        ErrorCode::UnknownKey,
        ErrorCode::UnknownAccount,
        ErrorCode::VmEnded,
        ErrorCode::VmPaused,
        ErrorCode::QuotaExceeded,
        ErrorCode::TemplateDamaged,
    ];
    kind && !elsewhere.contains(&code)
}

/// An id for a command that is started detached.
pub fn new_exec_id() -> String {
    new_id("exec")
}

fn new_id(kind: &str) -> String {
    format!("{kind}_{}", Ulid::generate().to_string().to_ascii_lowercase())
}

pub(super) fn tell<T: Serialize>(value: &T) -> Result<Bytes, Error> {
    serde_json::to_vec(value).map(Bytes::from).map_err(Error::Unspeakable)
}

fn request(method: Method, path: &str, body: Bytes) -> Result<Request<Stream>, Error> {
    // HTTP/2 wants an authority; there is nobody else at the other end.
    let request = Request::builder().method(method).uri(format!("http://guest{path}"));
    request.body(Full::new(body).map_err(|never| match never {}).boxed_unsync()).map_err(malformed)
}

pub(super) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, answer).await.map_err(|_| Error::Silent(limit))?
}

pub(super) fn malformed(error: impl std::fmt::Display) -> Error {
    Error::Malformed(error.to_string())
}
