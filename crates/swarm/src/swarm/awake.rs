//! VMs that calls need: a VM that an idle timeout paused is resumed first.

use std::{sync::Arc, time::Duration};

use skep_api::{
    AccountId, ErrorCode, Failure, VmId,
    keys::Limits,
    swarm::{ResumedBy, Vm},
};
use skep_channel::{AnswerMemory, Guest};
use tokio::time::timeout;

use super::Swarm;
use crate::{
    Error,
    vm::{ActiveCall, VmHandle},
};

/// How long a call waits for the resume of its VM.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);

/// A running VM. No idle timeout pauses it as long as this exists.
#[derive(Debug)]
pub struct AwakeVm {
    pub(super) handle: VmHandle,
    pub(super) guest: Guest,
    pub(super) call: ActiveCall,
}

impl AwakeVm {
    /// Reserves memory for the answers of its guest.
    #[must_use]
    pub fn with_answer_memory(self, memory: Arc<dyn AnswerMemory>) -> Self {
        Self { guest: self.guest.with_answer_memory(memory), ..self }
    }

    /// The record of the VM.
    pub fn record(&self) -> Vm {
        self.handle.record()
    }
}

impl Swarm {
    /// Finds a VM that a call needs. One that an idle timeout paused is resumed: once for all calls that wait for it.
    ///
    /// # Errors
    /// Unknown VM; one that a request paused; for a resume those of [`Swarm::resume`], and `overloaded` after 30 seconds.
    pub async fn awake(&self, account: &AccountId, limits: &Limits, vm: VmId) -> Result<AwakeVm, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        let awake = timeout(RESUME_TIMEOUT, async {
            let call = handle.activity.begin().await;
            Ok::<_, Error>((self.running_guest(account, limits, &handle).await?, call))
        });
        let too_late = |_| {
            let seconds = RESUME_TIMEOUT.as_secs();
            let message =
                format!("VM {vm} was paused for being idle, and does not run after {seconds} s; try again");
            Failure::new(ErrorCode::Overloaded, message)
        };
        let (guest, call) = awake.await.map_err(too_late)??;
        Ok(AwakeVm { handle, guest, call })
    }

    async fn running_guest(
        &self,
        account: &AccountId,
        limits: &Limits,
        handle: &VmHandle,
    ) -> Result<Guest, Error> {
        if handle.wakes() {
            let _alone = handle.activity.resume_alone().await;
            if handle.wakes() {
                self.resume_by(account, limits, handle, ResumedBy::Activity, None).await?;
            }
        }
        Ok(handle.guest()?)
    }
}
