//! Operations and commands inside VMs.

use std::time::Duration;

use skep_api::{
    Operation,
    exec::{ANSWER_GRACE, MAX_TIMEOUT_MS, RunCommand},
};
use skep_channel::{Content, ExecStream};

use super::AwakeVm;
use crate::{EndReasonReceiver, Error, boot_command};

/// How long a command may run while a caller waits for it, including the time for its answer.
const MAX_EXEC_DURATION: Duration = Duration::from_millis(MAX_TIMEOUT_MS).saturating_add(ANSWER_GRACE);

impl AwakeVm {
    /// Performs an operation in a VM. Dropping the future cancels it in the guest.
    ///
    /// # Errors
    /// A VM that was paused or ended meanwhile, a guest that does not answer, or a refusal of the guest.
    pub async fn call<O: Operation>(self, operation: &O) -> Result<O::Answer, Error> {
        let Self { handle, guest, call: _call } = self;
        match guest.call(operation).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(handle.explain(error).await),
        }
    }

    /// Performs an operation whose request or answer is followed by a byte stream. Dropping the future or the stream
    /// cancels it in the guest.
    ///
    /// # Errors
    /// As [`AwakeVm::call`].
    pub async fn call_streamed<O: Operation>(
        self,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Error> {
        let Self { handle, guest, call } = self;
        match guest.call_streamed(operation, content).await {
            Ok((answer, content)) => {
                let content = handle.ending.explain_content(guest, content);
                Ok((answer, call.during(content)))
            }
            Err(error) => Err(handle.explain(error).await),
        }
    }

    /// Runs a command in a VM and streams its output. Dropping the stream ends the command. If the events break off,
    /// the [`EndReasonReceiver`] has the reason.
    ///
    /// # Errors
    /// As [`AwakeVm::call`].
    pub async fn exec_stream(self, command: RunCommand) -> Result<(ExecStream, EndReasonReceiver), Error> {
        let Self { handle, guest, call } = self;
        match guest.start(&command).await {
            Ok(events) => Ok((events.with_guard(call), handle.ending)),
            Err(error) => Err(handle.explain(error).await),
        }
    }

    /// Attaches to a running command at these output offsets. Dropping the stream ends the command, unless it is the
    /// command of the boot. If the events break off, the [`EndReasonReceiver`] has the reason.
    ///
    /// # Errors
    /// As [`AwakeVm::call`]; unknown command.
    pub async fn exec_attach(
        self,
        exec_id: &str,
        stdout_offset: u64,
        stderr_offset: u64,
    ) -> Result<(ExecStream, EndReasonReceiver), Error> {
        let Self { handle, guest, call } = self;
        let of_boot = handle.facts.exec_id.as_deref() == Some(exec_id);
        let attached = if of_boot {
            let limit = boot_command::MAX_COMMAND_DURATION;
            guest.attach_detached(exec_id, stdout_offset, stderr_offset, limit).await
        } else {
            guest.attach(exec_id, stdout_offset, stderr_offset, MAX_EXEC_DURATION).await
        };
        match attached {
            Ok(events) => Ok((events.with_guard(call), handle.ending)),
            Err(error) => Err(handle.explain(error).await),
        }
    }
}
