//! Calls the helper: the process that runs operations with programs on this machine, as the guest agent does in a VM.

use std::{future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use skep_api::{ErrorCode, Failure, HelperKind, Operation, exec::RunCommand};
use skep_channel::{AccountRoots, Content, Error, ExecStream, Guest};
use tokio::{net::UnixStream, sync::Mutex};

use crate::memory::RequestMemory;

/// How long a started helper may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a helper of a kind and returns the server's end of the stream to it.
pub type StartHelper = Arc<
    dyn Fn(HelperKind) -> Pin<Box<dyn Future<Output = Result<UnixStream, Failure>> + Send>> + Send + Sync,
>;

/// The helper of one kind, started at its first use, and restarted at the next use after it died. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Helper {
    kind: HelperKind,
    start: StartHelper,
    /// Locked while a helper starts, so that concurrent calls share it.
    current: Arc<Mutex<Option<Guest>>>,
}

impl Helper {
    pub(crate) fn new(kind: HelperKind, start: StartHelper) -> Self {
        Self { kind, start, current: Arc::default() }
    }

    /// Runs an operation below the roots of an account. Dropping the future before the answer ends the programs.
    ///
    /// # Errors
    /// What the operation refuses; `exec_unavailable` where no helper can be started.
    pub(crate) async fn run<O: Operation>(
        &self,
        roots: Vec<PathBuf>,
        operation: &O,
        memory: &RequestMemory,
    ) -> Result<O::Answer, Failure> {
        let guest = self.guest_with_roots(roots).await?.with_answer_memory(memory.for_answers());
        guest.call(operation).await.map_err(helper_failure)
    }

    /// Runs an operation whose request or answer is followed by a byte stream.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn run_streamed<O: Operation>(
        &self,
        roots: Vec<PathBuf>,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Failure> {
        self.guest_with_roots(roots).await?.call_streamed(operation, content).await.map_err(helper_failure)
    }

    /// Starts a command and streams its events.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn stream(
        &self,
        roots: Vec<PathBuf>,
        command: &RunCommand,
    ) -> Result<ExecStream, Failure> {
        self.guest_with_roots(roots).await?.start(command).await.map_err(helper_failure)
    }

    async fn guest_with_roots(&self, roots: Vec<PathBuf>) -> Result<Guest, Failure> {
        self.guest().await?.with_account_roots(&AccountRoots { roots }).map_err(helper_failure)
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
        let guest = Guest::connect(stream, START_TIMEOUT).await.map_err(helper_failure)?;
        *current = Some(guest.clone());
        Ok(guest)
    }
}

/// The failure for an error of a helper. Its messages name the server instead of a VM.
pub(crate) fn helper_failure(error: Error) -> Failure {
    let unavailable = |message: &str| Failure::new(ErrorCode::ExecUnavailable, message);
    match error {
        Error::Refused(failure) => failure,
        Error::Ended => {
            unavailable("the helper that runs programs on this server ended, and its programs; try again")
        }
        Error::Timeout(limit) => Failure::new(
            ErrorCode::GuestTimeout,
            format!(
                "there was no answer within {} s; the server may be overloaded: try again",
                limit.as_secs_f32()
            ),
        ),
        error => error.into(),
    }
}
