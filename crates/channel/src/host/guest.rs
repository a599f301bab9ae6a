//! A connection to the agent of a VM.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use skep_api::{AnswerLimit, ErrorCode, ErrorKind, Failure, Operation};
use tokio::{
    net::UnixStream,
    runtime::Handle,
    sync::{Semaphore, watch},
    time::timeout,
};
use ulid::Ulid;

use super::{
    AnswerMemory, Error, answer, answer_memory::MAX_UNRESERVED_BYTES, cancel::CancelOnDrop,
    prefixed_stream::PrefixedStream, resync::resync,
};
use crate::{
    AccountRoots, FIRST_PROTOCOL, FreezeReport, FreezeRequest, GuestUsage, HandOut, HandOutReport, Identity,
    IdentityReport, ThawRequest, TimeAndSeed, UnsupportedProtocol,
    account_roots::ACCOUNT_ROOTS_HEADER,
    head::BodyStream,
    protocol::{PROTOCOL_PATH, ProtocolReport},
};

/// The longest error answer, in bytes.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// The most concurrent uploads. Each may fill a window of 256 KiB in the guest, whose connection window has 4 MiB.
const MAX_UPLOADS: usize = 8;
/// The longest header with account roots: the guest accepts 16 KiB of headers.
const MAX_ACCOUNT_ROOTS_BYTES: usize = 12 << 10;
/// The time limit for setting an identity, for a cancellation, and for the head of a stream.
pub(super) const CONTROL_LIMIT: Duration = Duration::from_secs(30);
/// The time limit of [`Guest::freeze`]: twice what the guest waits for its programs.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);
/// The same with `sync`: the guest then writes what its memory holds of its disk.
const FREEZE_AND_SYNC_LIMIT: Duration = Duration::from_secs(60);
/// The time limit of [`Guest::usage`]: figures of a guest that is too busy to answer are left out.
const USAGE_LIMIT: Duration = Duration::from_secs(2);
/// The time limit of [`Guest::settle`]: the guest runs several programs once, in emulation.
const SETTLE_LIMIT: Duration = Duration::from_secs(240);
/// After a failed request, how long to wait for the whole connection to be reported as lost.
const CLOSE_DETECTION_LIMIT: Duration = Duration::from_secs(1);

/// A connection to the agent of a VM. Cheap to clone; the connection is closed with the last clone and the last
/// stream. That also closes the socket, unless it has other owners.
#[derive(Debug, Clone)]
pub struct Guest {
    requests: SendRequest<BodyStream>,
    closed: watch::Receiver<bool>,
    pub(super) runtime: Handle,
    /// Permits for uploads: all requests share the window of the connection.
    uploads: Arc<Semaphore>,
    account_roots: Option<HeaderValue>,
    answer_memory: Option<Arc<dyn AnswerMemory>>,
}

impl Guest {
    /// Synchronises with the agent and opens an HTTP/2 connection. A previous connection is lost.
    ///
    /// # Errors
    /// [`Error::Timeout`] after `deadline`, [`Error::Ended`] if the stream ends.
    pub async fn connect(stream: UnixStream, deadline: Duration) -> Result<Self, Error> {
        timeout(deadline, Self::open(stream)).await.map_err(|_| Error::Timeout(deadline))?
    }

    async fn open(mut stream: UnixStream) -> Result<Self, Error> {
        let early = resync(&mut stream).await?;
        let mut settings = http2::Builder::new(TokioExecutor::new());
        // A stream that is not read buffers at most its window. Half of the connection window also limits the overhead
        // of small unread frames: beyond that, h2 closes the connection, and with it the VM. It suffices for some 30
        // streams that each have a window full of single bytes.
        settings
            .max_header_list_size(16 * 1024)
            // The count covers the lifetime of the connection and includes frames for streams that were dropped
            // unread.
            .max_local_error_reset_streams(None)
            .initial_stream_window_size(64 * 1024)
            .initial_connection_window_size(64 * 1024 * 1024);
        let (requests, connection) = settings
            .handshake(TokioIo::new(PrefixedStream::new(early, stream)))
            .await
            .map_err(|_| Error::Ended)?;
        let (ended, closed) = watch::channel(false);
        let runtime = Handle::current();
        runtime.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a guest ended");
            }
            ended.send_replace(true);
        });
        Ok(Self {
            requests,
            closed,
            runtime,
            uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
            account_roots: None,
            answer_memory: None,
        })
    }

    /// Returns a client whose requests run with these account roots.
    ///
    /// # Errors
    /// [`Error::TooManyRoots`] if they do not fit into a header.
    pub fn with_account_roots(&self, account_roots: &AccountRoots) -> Result<Self, Error> {
        let text =
            serde_json::to_vec(account_roots).ok().filter(|text| text.len() <= MAX_ACCOUNT_ROOTS_BYTES);
        let value = text.and_then(|text| HeaderValue::from_bytes(&text).ok()).ok_or(Error::TooManyRoots)?;
        Ok(Self { account_roots: Some(value), ..self.clone() })
    }

    /// Returns a client that reserves memory for the answers of [`Self::call`].
    #[must_use]
    pub fn with_answer_memory(&self, memory: Arc<dyn AnswerMemory>) -> Self {
        Self { answer_memory: Some(memory), ..self.clone() }
    }

    /// Asks for the protocol of the agent and checks that this end speaks it. Used for agents that may be of another release.
    ///
    /// # Errors
    /// [`Error::UnsupportedProtocol`], the guest's error, a lost connection, or a timeout.
    pub async fn check_protocol(&self) -> Result<u32, Error> {
        let request = request(Method::GET, PROTOCOL_PATH, Bytes::new())?;
        let answer = with_timeout(CONTROL_LIMIT, self.request_json(request, AnswerLimit::SHORT)).await;
        let protocol = match answer {
            Ok(ProtocolReport { protocol }) => protocol,
            Err(Error::Refused(failure)) if failure.code == ErrorCode::UnknownRoute => FIRST_PROTOCOL,
            Err(error) => return Err(error),
        };
        UnsupportedProtocol::check(protocol)?;
        Ok(protocol)
    }

    /// Sets the identity of the guest, and returns what it reads back. Check it with [`IdentityReport::verify`].
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn set_identity(&self, identity: &Identity) -> Result<IdentityReport, Error> {
        let request = request(Method::POST, "/identity", to_json(identity)?)?;
        with_timeout(CONTROL_LIMIT, self.request_json(request, AnswerLimit::SHORT)).await
    }

    /// Assigns a guest that has an identity to its owner. Check the result with [`HandOutReport::verify`].
    ///
    /// # Errors
    /// The guest's error (for example if it has no identity yet), a lost connection, or a timeout.
    pub async fn hand_out(&self, hand_out: &HandOut) -> Result<HandOutReport, Error> {
        let request = request(Method::POST, "/hand-out", to_json(hand_out)?)?;
        with_timeout(CONTROL_LIMIT, self.request_json(request, AnswerLimit::SHORT)).await
    }

    /// Sets the clock of a guest that stood still, and reseeds its random number generator. Check the result with
    /// [`HandOutReport::verify`].
    ///
    /// # Errors
    /// The guest's error (`unknown_route` if its agent is of an earlier release), a lost connection, or a timeout.
    pub async fn set_clock(&self, moment: &TimeAndSeed) -> Result<HandOutReport, Error> {
        let request = request(Method::POST, "/clock", to_json(moment)?)?;
        with_timeout(CONTROL_LIMIT, self.request_json(request, AnswerLimit::SHORT)).await
    }

    /// Stops all programs of the guest, and with `sync` also writes its file system to its disk. After an error they may
    /// be frozen: call [`Self::thaw`].
    ///
    /// # Errors
    /// The guest's error (`unknown_route` if its agent is of an earlier release, `guest_timeout` if its programs did not
    /// stop in time, a conflict if they are frozen with another token), a lost connection, or a timeout.
    pub async fn freeze(&self, request: &FreezeRequest) -> Result<(), Error> {
        let limit = if request.sync { FREEZE_AND_SYNC_LIMIT } else { FREEZE_LIMIT };
        let body = to_json(request)?;
        let answer = self.request_json(self::request(Method::POST, "/freeze", body)?, AnswerLimit::SHORT);
        let FreezeReport { synced } = with_timeout(limit, answer).await?;
        if request.sync && !synced {
            return Err(malformed("its file system was not synced"));
        }
        Ok(())
    }

    /// Lets all programs of the guest run again. `token` is that of the freeze; `None` ends any freeze. Succeeds if they
    /// run already.
    ///
    /// # Errors
    /// The guest's error (`unknown_route` if its agent is of an earlier release, a conflict if its programs are frozen
    /// with another token), a lost connection, or a timeout.
    pub async fn thaw(&self, token: Option<&str>) -> Result<(), Error> {
        let body = to_json(&ThawRequest { token: token.map(str::to_owned) })?;
        let request = request(Method::POST, "/thaw", body)?;
        with_timeout(FREEZE_LIMIT, self.request_json::<IgnoredAny>(request, AnswerLimit::SHORT))
            .await
            .map(drop)
    }

    /// Removes the control groups of ended commands, and leaves other deferred work of the guest the time that it takes. A
    /// VM that is paused after that runs its next command with the least delay when it is resumed.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn rest(&self) -> Result<(), Error> {
        let request = request(Method::POST, "/rest", Bytes::new())?;
        with_timeout(CONTROL_LIMIT, self.request_json::<IgnoredAny>(request, AnswerLimit::SHORT))
            .await
            .map(drop)
    }

    /// Warms up the guest before its snapshot is taken.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn settle(&self) -> Result<(), Error> {
        let request = request(Method::POST, "/settle", Bytes::new())?;
        with_timeout(SETTLE_LIMIT, self.request_json::<IgnoredAny>(request, AnswerLimit::SHORT))
            .await
            .map(drop)
    }

    /// The current resource usage inside the guest.
    ///
    /// # Errors
    /// The guest's error (`unknown_route` from an agent of an earlier release), a lost connection, or a timeout.
    pub async fn usage(&self) -> Result<GuestUsage, Error> {
        let request = request(Method::GET, "/usage", Bytes::new())?;
        with_timeout(USAGE_LIMIT, self.request_json(request, AnswerLimit::SHORT)).await
    }

    /// Runs an operation in the guest. Dropping the future cancels the operation; losing the connection does not.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn call<O: Operation>(&self, operation: &O) -> Result<O::Answer, Error> {
        let mut cancel = CancelOnDrop::new(self, new_id("call"));
        let mut request = request(Method::POST, &format!("/operations/{}", O::NAME), to_json(operation)?)?;
        let id = cancel.id().parse().map_err(malformed)?;
        request.headers_mut().insert("skep-call", id);
        let answer =
            with_timeout(operation.time_limit(), self.request_json(request, operation.answer_limit())).await;
        // After a timeout the operation still runs in the guest although no caller waits for it, so it is cancelled.
        if !matches!(answer, Err(Error::Timeout(_))) {
            cancel.disarm();
        }
        answer
    }

    pub(super) fn uploads(&self) -> &Arc<Semaphore> {
        &self.uploads
    }

    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Waits until the connection is lost.
    pub async fn closed(&self) {
        // The sender is dropped only with its runtime; the connection is lost in that case too.
        let _ = self.closed.clone().wait_for(|closed| *closed).await;
    }

    pub(super) async fn request_json<A: DeserializeOwned + Send + 'static>(
        &self,
        request: Request<BodyStream>,
        limit: AnswerLimit,
    ) -> Result<A, Error> {
        let body = self.read(self.send(request).await?.into_body(), limit.bytes).await?;
        answer::parse(body, limit.values).await
    }

    /// Sends a request. Returns the head of the answer, or the guest's error.
    pub(super) async fn send(&self, mut request: Request<BodyStream>) -> Result<Response<Incoming>, Error> {
        request.headers_mut().extend(self.account_roots.clone().map(|roots| (ACCOUNT_ROOTS_HEADER, roots)));
        let answer = match self.requests.clone().send_request(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.classify_error(&error).await),
        };
        if answer.status() == StatusCode::OK {
            return Ok(answer);
        }
        let body = self.read(answer.into_body(), MAX_REFUSAL_BYTES).await?;
        let failure: Failure = serde_json::from_slice(&body).map_err(malformed)?;
        if may_come_from_guest(failure.code) {
            return Err(Error::Refused(failure));
        }
        Err(malformed(format!(
            "the error `{}`, which a guest must not send: {failure}",
            failure.code.as_str()
        )))
    }

    /// Reads a body. Beyond [`MAX_UNRESERVED_BYTES`], it first reserves memory for the whole body.
    async fn read(&self, mut body: Incoming, limit: usize) -> Result<Vec<u8>, Error> {
        let (mut bytes, mut is_reserved) = (Vec::new(), false);
        let longest = body.size_hint().exact().unwrap_or(limit as u64);
        while let Some(frame) = body.frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => return Err(self.classify_error(&error).await),
            };
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > limit {
                return Err(Error::Malformed(format!("an answer of more than {limit} bytes")));
            }
            if length > MAX_UNRESERVED_BYTES && !is_reserved {
                self.reserve(longest.min(limit as u64)).await?;
                is_reserved = true;
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    async fn reserve(&self, bytes: u64) -> Result<(), Error> {
        match &self.answer_memory {
            Some(memory) => memory.reserve(bytes).await.map_err(Error::Refused),
            None => Ok(()),
        }
    }

    /// Whether only this request failed, or the whole connection.
    async fn classify_error(&self, error: &hyper::Error) -> Error {
        match timeout(CLOSE_DETECTION_LIMIT, self.closed()).await {
            Ok(()) => Error::Ended,
            Err(_) => Error::Malformed(format!("a request was cut short: {error}")),
        }
    }
}

/// Whether a guest may answer this error. It has no knowledge of keys, the server or other VMs; a forged code would
/// for example tell the caller that its key was revoked.
fn may_come_from_guest(code: ErrorCode) -> bool {
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
                // A guest could as well be silent.
                | ErrorCode::GuestTimeout
        ),
    };
    let never_from_guest = [
        ErrorCode::UnknownVm,
        ErrorCode::UnknownTemplate,
        ErrorCode::UnknownKey,
        ErrorCode::UnknownAccount,
        ErrorCode::VmEnded,
        ErrorCode::VmPaused,
        ErrorCode::VmNotOnDisk,
        ErrorCode::QuotaExceeded,
        ErrorCode::TemplateDamaged,
    ];
    kind && !never_from_guest.contains(&code)
}

/// A new id for a detached command.
pub fn new_exec_id() -> String {
    new_id("exec")
}

pub(super) fn new_id(kind: &str) -> String {
    format!("{kind}_{}", Ulid::generate().to_string().to_ascii_lowercase())
}

pub(super) fn to_json<T: Serialize>(value: &T) -> Result<Bytes, Error> {
    serde_json::to_vec(value).map(Bytes::from).map_err(Error::NotSerializable)
}

pub(super) fn request(method: Method, path: &str, body: Bytes) -> Result<Request<BodyStream>, Error> {
    // HTTP/2 requires an authority; its value does not matter here.
    let request = Request::builder().method(method).uri(format!("http://guest{path}"));
    request.body(Full::new(body).map_err(|never| match never {}).boxed_unsync()).map_err(malformed)
}

pub(super) async fn with_timeout<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, answer).await.map_err(|_| Error::Timeout(limit))?
}

pub(super) fn malformed(error: impl std::fmt::Display) -> Error {
    Error::Malformed(error.to_string())
}
