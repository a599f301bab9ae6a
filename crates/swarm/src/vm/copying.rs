//! A copy of a VM that runs: its programs are frozen and its processors stopped while the keeper copies memory and disk.
//!
//! Programs stay frozen in each copy until it has its own identity. The VM itself runs on after the copy: each step that
//! stopped something is undone, whatever fails. If the server dies in between, the next one starts the processors and thaws
//! the programs of every VM that it takes over.

use skep_api::{ErrorCode, Failure, TemplateId, VmId};
use skep_channel::FreezeRequest;
use skep_keeper_protocol::{AfterCapture, ServerEnd};

use super::{Live, Running, VmHandle, handle::CopyCommand, task::VmTask};
use crate::{Error, captures::CapturePermit, hand_out};

/// What a copy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyPurpose {
    /// VMs are restored from it at once.
    Fork,
    /// It is stored. The guest writes its disk first, so that the disk alone is consistent as well.
    Snapshot,
}

impl VmTask {
    pub(super) async fn copy(&self, state: &Live, command: CopyCommand) {
        let vm = self.facts.id;
        let CopyCommand { capture, purpose, done } = command;
        let outcome = match state {
            Live::Running(running) => self.copy_running(running, capture, purpose).await,
            Live::Paused(_) | Live::OnDisk(_) => Err(Failure::vm_paused(vm).into()),
        };
        if let Err(error) = &outcome {
            tracing::warn!(%vm, %error, "VM {vm} is not copied: {error}");
        }
        // Fails only if the caller is gone.
        let _ = done.send(outcome);
    }

    /// The permit is taken when the copy begins, so that copies of one VM, which wait for each other, take one at a time.
    async fn copy_running(
        &self,
        running: &Running,
        capture: TemplateId,
        purpose: CopyPurpose,
    ) -> Result<CapturePermit, Error> {
        let permit = self.context.captures.acquire(self.facts.account)?;
        running.copy(&self.context.keeper, &self.handle, capture, purpose).await?;
        Ok(permit)
    }
}

impl Running {
    /// Copies the VM into a capture of the keeper.
    ///
    /// # Errors
    /// The guest's programs cannot be frozen, the VMM or the keeper refused, or the VM has ended or is about to. There is no
    /// capture then.
    pub(super) async fn copy(
        &self,
        keeper: &ServerEnd,
        handle: &VmHandle,
        capture: TemplateId,
        purpose: CopyPurpose,
    ) -> Result<(), Error> {
        let vm = handle.facts.id;
        let state = keeper.prepare_capture(vm, capture, AfterCapture::RunsOn).await?;
        tracing::debug!(%vm, %capture, "the memory of VM {vm} is copied while it runs");
        let token = capture.to_string();
        let freeze = FreezeRequest { token: token.clone(), sync: purpose == CopyPurpose::Snapshot };
        let frozen = handle.unless_ended(self.guest.freeze(&freeze)).await;
        tracing::debug!(%vm, %capture, "the programs of VM {vm} are frozen");
        let copied = match frozen {
            Ok(()) => self.copy_frozen(keeper, vm, capture, state).await,
            Err(error) => Err(error.into()),
        };
        // The programs are thawed after a failed freeze too: the guest may have frozen them, and its answer may be lost.
        let thaw = self.guest.thaw(Some(&token));
        let thawed = if copied.is_ok() { thaw.await } else { handle.unless_ended(thaw).await };
        tracing::debug!(%vm, %capture, "the programs of VM {vm} run again");
        let outcome = copied.and_then(|()| Ok(thawed?)).map_err(of_copy);
        if outcome.is_err()
            && let Err(error) = keeper.drop_capture(capture).await
        {
            tracing::warn!(%vm, %error, "a copy of VM {vm} is not freed before the server ends: {error}");
        }
        outcome
    }

    /// Freezes the programs, stops the processors and copies the VM. All of them stay so.
    ///
    /// # Errors
    /// As [`Running::copy`]. The VM may be stopped then.
    pub(super) async fn stop_and_capture(
        &self,
        keeper: &ServerEnd,
        handle: &VmHandle,
        capture: TemplateId,
    ) -> Result<(), Error> {
        self.try_stop_and_capture(keeper, handle, capture).await.map_err(of_copy)
    }

    async fn try_stop_and_capture(
        &self,
        keeper: &ServerEnd,
        handle: &VmHandle,
        capture: TemplateId,
    ) -> Result<(), Error> {
        let vm = handle.facts.id;
        let state = keeper.prepare_capture(vm, capture, AfterCapture::Ends).await?;
        let freeze = FreezeRequest { token: capture.to_string(), sync: true };
        handle.unless_ended(self.guest.freeze(&freeze)).await?;
        tracing::debug!(%vm, %capture, "the programs of VM {vm} are frozen");
        self.machine.pause().await?;
        tracing::debug!(%vm, %capture, "the processors of VM {vm} are stopped for its pause");
        self.machine.save_devices(state).await?;
        tracing::debug!(%vm, %capture, "the devices of VM {vm} are saved");
        Ok(keeper.capture(capture).await?)
    }

    /// Undoes [`Running::stop_and_capture`].
    ///
    /// # Errors
    /// The VMM or the guest does not answer.
    pub(super) async fn run_again(&self, token: &str) -> Result<(), Error> {
        self.machine.resume().await?;
        let clock = hand_out::set_clock(&self.guest).await;
        // The programs are thawed even if the clock could not be set.
        let thawed = self.guest.thaw(Some(token)).await;
        clock?;
        Ok(thawed?)
    }

    async fn copy_frozen(
        &self,
        keeper: &ServerEnd,
        vm: VmId,
        capture: TemplateId,
        state: std::os::fd::OwnedFd,
    ) -> Result<(), Error> {
        let copied = async {
            self.machine.pause().await?;
            tracing::debug!(%vm, %capture, "the processors of VM {vm} are stopped for a copy");
            self.machine.save_devices(state).await?;
            tracing::debug!(%vm, %capture, "the devices of VM {vm} are saved");
            Ok::<_, Error>(keeper.capture(capture).await?)
        };
        let copied = copied.await;
        // The processors are started even if the pause failed: they may be stopped, and the answer of the VMM may be lost.
        let resumed = self.machine.resume().await;
        tracing::debug!(%vm, %capture, "the processors of VM {vm} run again");
        copied?;
        resumed?;
        hand_out::set_clock(&self.guest).await
    }
}

/// The error of a copy. A guest that answers nonsense is no fault of the server.
fn of_copy(error: Error) -> Error {
    match error {
        Error::Guest(guest) if !matches!(guest.code(), ErrorCode::VmEnded | ErrorCode::GuestTimeout) => {
            let message = format!(
                "the agent of this VM does not stop and continue its programs as it should: {guest}; the VM is not copied and runs \
                 on, and if this happens again, end it and boot another"
            );
            Failure::new(ErrorCode::GuestTimeout, message).into()
        }
        other => other,
    }
}
