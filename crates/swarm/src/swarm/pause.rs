//! Pause and resume of a VM.

use skep_api::{
    AccountId, ErrorCode, Failure, VmId,
    keys::Limits,
    swarm::{PausedBy, PausedTo, ResumedBy, Vm},
};
use skep_store::Pause;

use super::Swarm;
use crate::{
    Error,
    vm::{ResumeOrder, VmHandle},
};

/// How often a resume is tried, if the VM is paused to disk between the look at its state and the resume.
const MAX_RESUME_ATTEMPTS: u32 = 3;

impl Swarm {
    /// Pauses a VM, and returns its record. A VM that is paused to memory can be paused to disk, any other paused VM stays as it
    /// is. To disk, its VMM ends, and its memory and its share of the capacity are free.
    ///
    /// # Errors
    /// Unknown VM, a VM that ended meanwhile, a VMM that does not answer, or the store refused. To disk also the quota of the
    /// account, a guest that does not freeze its programs, no space for the files, and an update of the engine since the start of
    /// skep; the VM stays as it is then.
    pub async fn pause(
        &self,
        account: &AccountId,
        vm: VmId,
        to: PausedTo,
        request_id: &str,
    ) -> Result<Vm, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        handle.pause(Pause { to, by: PausedBy::Request }, Some(request_id)).await
    }

    /// Resumes a paused VM, and returns its record. A VM that runs stays as it is. Without its memory, a VM that is on disk
    /// starts again from its disk alone; see [`Swarm::resume_without_memory`].
    ///
    /// # Errors
    /// As [`Swarm::pause`]; a guest that does not answer. From disk also no capacity, and a damaged snapshot.
    pub async fn resume(
        &self,
        account: &AccountId,
        limits: &Limits,
        vm: VmId,
        request_id: &str,
    ) -> Result<Vm, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        self.resume_by(account, limits, &handle, ResumedBy::Request, Some(request_id)).await
    }

    /// Resumes a VM. From disk, capacity is reserved first.
    pub(super) async fn resume_by(
        &self,
        account: &AccountId,
        limits: &Limits,
        handle: &VmHandle,
        by: ResumedBy,
        request_id: Option<&str>,
    ) -> Result<Vm, Error> {
        for _ in 0..MAX_RESUME_ATTEMPTS {
            let reservation = match handle.snapshot() {
                Some(snapshot) if handle.is_on_disk() => {
                    Some(self.reserve_resume(*account, limits, handle, snapshot).await?)
                }
                _ => None,
            };
            match handle.resume(ResumeOrder { by, reservation, disk: None }, request_id).await {
                // It was paused to disk meanwhile.
                Err(Error::NotReserved) => {}
                outcome => return outcome,
            }
        }
        let vm = handle.facts.id;
        let message = format!("VM {vm} was paused to disk each time that it was to be resumed; try again");
        Err(Failure::new(ErrorCode::Overloaded, message).into())
    }
}
