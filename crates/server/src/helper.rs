//! The helper: the process on this machine in which whatever starts programs is done, as the agent does it in a VM.

use std::{future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use skep_api::{ErrorCode, Failure, HelperKind, Operation, exec::RunCommand};
use skep_channel::{Content, Error, ExecStream, Ground, Guest};
use tokio::{net::UnixStream, sync::Mutex};

/// How long a helper that was started may take to answer.
const DEADLINE: Duration = Duration::from_secs(20);

/// Starts a helper of a kind, and gives our end of the stream to it.
pub type StartHelper = Arc<
    dyn Fn(HelperKind) -> Pin<Box<dyn Future<Output = Result<UnixStream, Failure>> + Send>> + Send + Sync,
>;

/// The helper of one kind of this server, started when it is first needed, and again where it died. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Helper {
    kind: HelperKind,
    start: StartHelper,
    /// Whoever comes while one is started waits for that one.
    current: Arc<Mutex<Option<Guest>>>,
}

impl Helper {
    pub(crate) fn new(kind: HelperKind, start: StartHelper) -> Self {
        Self { kind, start, current: Arc::default() }
    }

    /// Does an operation on the ground of an account. Dropped before the answer, it ends what it started.
    ///
    /// # Errors
    /// What the operation refuses; `exec_unavailable` where no helper can be had.
    pub(crate) async fn run<O: Operation>(
        &self,
        roots: Vec<PathBuf>,
        operation: &O,
    ) -> Result<O::Answer, Failure> {
        self.on(roots).await?.call(operation).await.map_err(told)
    }

    /// Does an operation with bytes behind its request, where there are any, or behind its answer.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn run_streamed<O: Operation>(
        &self,
        roots: Vec<PathBuf>,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Failure> {
        self.on(roots).await?.call_streamed(operation, content).await.map_err(told)
    }

    /// Starts a command, whose events come as they happen.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn stream(
        &self,
        roots: Vec<PathBuf>,
        command: &RunCommand,
    ) -> Result<ExecStream, Failure> {
        self.on(roots).await?.start(command).await.map_err(told)
    }

    async fn on(&self, roots: Vec<PathBuf>) -> Result<Guest, Failure> {
        self.guest().await?.on(&Ground { roots }).map_err(told)
    }

    async fn guest(&self) -> Result<Guest, Failure> {
        let mut current = self.current.lock().await;
        if let Some(guest) = current.as_ref().filter(|guest| !guest.is_closed()) {
            return Ok(guest.clone());
        }
        let stream = (self.start)(self.kind).await.map_err(|failure| {
            let message = format!(
                "this server cannot start programs now: {failure}; `skep doctor` says what is missing"
            );
            Failure::new(ErrorCode::ExecUnavailable, message)
        })?;
        let guest = Guest::connect(stream, DEADLINE).await.map_err(told)?;
        *current = Some(guest.clone());
        Ok(guest)
    }
}

/// What a helper did not do, in words for the caller: it is no VM.
pub(crate) fn told(error: Error) -> Failure {
    let unavailable = |message: &str| Failure::new(ErrorCode::ExecUnavailable, message);
    match error {
        Error::Refused(failure) => failure,
        Error::Ended => {
            unavailable("what starts programs on this server ended, and what it ran with it; try again")
        }
        Error::Silent(limit) => Failure::new(
            ErrorCode::GuestTimeout,
            format!(
                "there was no answer within {} s; the server may be overloaded: try again",
                limit.as_secs_f32()
            ),
        ),
        error => error.into(),
    }
}
