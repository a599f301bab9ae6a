//! The requests of a [`Guest`] that start commands, follow and cancel them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request};
use serde::de::IgnoredAny;
use skep_api::{
    AnswerLimit, Operation,
    exec::{ExecEvent, ExecExit, RunCommand},
};

use super::{
    Error, ExecStream, Guest,
    cancel::CancelOnDrop,
    guest::{CONTROL_LIMIT, new_id, request, to_json, with_timeout},
};
use crate::head::BodyStream;

impl Guest {
    /// Starts a command and returns its events as they happen.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout. No command runs in these cases.
    pub async fn start(&self, command: &RunCommand) -> Result<ExecStream, Error> {
        let cancel = CancelOnDrop::new(self, new_id("exec"));
        let request = request(Method::PUT, &format!("/commands/{}", cancel.id()), to_json(command)?)?;
        self.stream(request, cancel, (0, 0), command.time_limit()).await
    }

    /// Starts a command under the given id. It keeps running when the caller or the connection goes away.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn start_detached(&self, exec_id: &str, command: &RunCommand) -> Result<(), Error> {
        let request = request(Method::PUT, &format!("/commands/{exec_id}"), to_json(command)?)?;
        let cancel = CancelOnDrop::disarmed(self, exec_id.to_owned());
        // The guest keeps the output for later readers.
        self.stream(request, cancel, (0, 0), command.time_limit()).await.map(drop)
    }

    /// Waits for the end of a command without reading its output. Dropping the future does not end the command.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn wait_for_exit(&self, exec_id: &str, limit: Duration) -> Result<ExecExit, Error> {
        let mut events = self.attach_detached(exec_id, u64::MAX, u64::MAX, limit).await?;
        while let Some(event) = events.next().await {
            if let ExecEvent::Exit(exit) = event? {
                return Ok(exit);
            }
        }
        Err(Error::Malformed("the events of a command ended before its exit".to_owned()))
    }

    /// Reads the events of a command from these offsets on. The command must end within `limit`. Dropping the stream
    /// before the exit kills the command.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn attach(
        &self,
        exec_id: &str,
        stdout_offset: u64,
        stderr_offset: u64,
        limit: Duration,
    ) -> Result<ExecStream, Error> {
        let cancel = CancelOnDrop::new(self, exec_id.to_owned());
        self.read_events(cancel, (stdout_offset, stderr_offset), limit).await
    }

    /// Like [`Self::attach`], but neither dropping the stream nor an error ends the command. The guest may answer late
    /// because its VM is paused.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn attach_detached(
        &self,
        exec_id: &str,
        stdout_offset: u64,
        stderr_offset: u64,
        limit: Duration,
    ) -> Result<ExecStream, Error> {
        let cancel = CancelOnDrop::disarmed(self, exec_id.to_owned());
        self.read_events(cancel, (stdout_offset, stderr_offset), limit).await
    }

    async fn read_events(
        &self,
        cancel: CancelOnDrop,
        offsets: (u64, u64),
        limit: Duration,
    ) -> Result<ExecStream, Error> {
        let (stdout, stderr) = offsets;
        let path = format!("/commands/{}?stdout={stdout}&stderr={stderr}", cancel.id());
        let request = request(Method::GET, &path, Bytes::new())?;
        self.stream(request, cancel, offsets, limit).await
    }

    /// Cancels a command from a `drop` implementation, which cannot wait.
    pub(super) fn cancel_later(&self, id: String) {
        let guest = self.clone();
        self.runtime.spawn(async move {
            let Ok(request) = request(Method::DELETE, &format!("/commands/{id}"), Bytes::new()) else {
                return;
            };
            let answer =
                with_timeout(CONTROL_LIMIT, guest.request_json::<IgnoredAny>(request, AnswerLimit::SHORT))
                    .await;
            // The guest does not know calls that started no command or never reached it.
            if let Err(error) = answer {
                tracing::debug!(%id, %error, "the guest had no command to cancel");
            }
        });
    }

    async fn stream(
        &self,
        request: Request<BodyStream>,
        mut cancel: CancelOnDrop,
        offsets: (u64, u64),
        limit: Duration,
    ) -> Result<ExecStream, Error> {
        let answer = with_timeout(CONTROL_LIMIT, self.send(request)).await;
        if !matches!(answer, Ok(_) | Err(Error::Timeout(_))) {
            cancel.disarm();
        }
        Ok(ExecStream::new(answer?.into_body(), cancel, offsets, limit))
    }
}
