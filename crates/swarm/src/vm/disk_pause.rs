//! The transitions of a VM's task between running and on disk.

use std::sync::Arc;

use jiff::Timestamp;
use skep_api::{
    TemplateId,
    swarm::{PausedBy, PausedTo},
};
use skep_store::{Pause, PauseChange};

use super::{
    Live, Paused, Running,
    current_vmm::VmmProcess,
    handle::{GuestAccess, ResumeOrder, StateCommand, not_on_disk},
    on_disk::{self, OnDisk, Resumed},
    task::{VmTask, exited},
};
use crate::{DiskReservation, Error, captures::CapturePermit};

impl VmTask {
    /// Pauses the VM to disk. The quota and the captures of the account are checked before anything is stopped.
    pub(super) async fn pause_to_disk(&mut self, state: Live, command: StateCommand, by: PausedBy) -> Live {
        let (state, outcome) = match state {
            Live::OnDisk(_) => self.record_reason(state, &command, by).await,
            state => match self.admit_to_disk().await {
                Ok((mut disk, _permit)) => self.store_within(state, &command, by, &mut disk).await,
                Err(error) => (state, Err(error)),
            },
        };
        self.show(GuestAccess::of(&state));
        self.answer("paused to disk", command, outcome);
        state
    }

    /// Reserves disk space, and takes a permit for the capture. Keep both until the VM is on disk, where its space is counted.
    async fn admit_to_disk(&self) -> Result<(DiskReservation, CapturePermit), Error> {
        let disk = self.context.disk_quotas.reserve_pause(&self.handle).await?;
        Ok((disk, self.context.captures.acquire(self.facts.account)?))
    }

    async fn store_within(
        &mut self,
        state: Live,
        command: &StateCommand,
        by: PausedBy,
        disk: &mut DiskReservation,
    ) -> (Live, Result<(), Error>) {
        match state {
            Live::OnDisk(_) => (state, Ok(())),
            Live::Running(running) => self.store(running, command, by, disk).await,
            // Its programs cannot be frozen before it runs.
            Live::Paused(paused) => self.store_paused(paused, command, by, disk).await,
        }
    }

    async fn store_paused(
        &mut self,
        paused: Paused,
        command: &StateCommand,
        by: PausedBy,
        disk: &mut DiskReservation,
    ) -> (Live, Result<(), Error>) {
        let before = paused.by;
        let running = match paused.resume(&self.context.keeper, self.facts.id).await {
            Ok(running) => running,
            Err((paused, error)) => return (Live::Paused(paused), Err(error)),
        };
        let (state, outcome) = self.store(running, command, by.after(before), disk).await;
        let state = match state {
            // The pause to disk failed, and the VM is still paused in memory on record.
            Live::Running(running) => self.pause_again(running, before).await,
            state => state,
        };
        (state, outcome)
    }

    /// Stops a VM that is still paused on record.
    pub(super) async fn pause_again(&self, running: Running, by: PausedBy) -> Live {
        match running.pause(by).await {
            Ok(paused) => Live::Paused(paused),
            Err((running, error)) => {
                tracing::error!(vm = %self.facts.id, %error, "VM {} runs, and is paused on record: {error}", self.facts.id);
                Live::Running(running)
            }
        }
    }

    async fn store(
        &mut self,
        running: Running,
        command: &StateCommand,
        by: PausedBy,
        disk: &mut DiskReservation,
    ) -> (Live, Result<(), Error>) {
        let (vm, snapshot) = (self.facts.id, TemplateId::generate());
        // The handle names the snapshot before its files exist, so that no comparison of records and files removes them.
        self.handle.set_snapshot(Some(snapshot));
        if let Err(error) = running.store(&self.context, &self.handle, snapshot, disk).await {
            return (Live::Running(running), Err(error));
        }
        tracing::debug!(%vm, %snapshot, "VM {vm} is stored on disk");
        // This comes before the record, so that callers who receive its event find the new state.
        self.handle.retire_pid();
        self.show(GuestAccess::Paused(Pause { to: PausedTo::Disk, by }));
        if let Err(error) = self.record(PauseChange::PausedToDisk { snapshot, by }, command).await {
            running.undo_store(&self.context.keeper, &self.handle, snapshot).await;
            return (Live::Running(running), Err(error));
        }
        tracing::debug!(%vm, %snapshot, "VM {vm} is on disk on record");
        self.exit = None;
        on_disk::end_vmm(&self.context.keeper, vm).await;
        self.reservation = None;
        (Live::OnDisk(OnDisk { snapshot, by }), Ok(()))
    }

    pub(super) async fn resume_from_disk(
        &mut self,
        on_disk: OnDisk,
        command: &StateCommand,
        order: ResumeOrder,
    ) -> (Live, Result<(), Error>) {
        let vm = self.facts.id;
        let ResumeOrder { by, reservation, disk } = order;
        if disk.is_some_and(|disk| disk.snapshot != on_disk.snapshot) {
            // It was resumed and paused again meanwhile.
            return (Live::OnDisk(on_disk), Err(not_on_disk(vm).into()));
        }
        // When the caller looked, the VM still had a VMM. A pause to disk was done before this resume.
        let Some(reservation) = reservation else {
            return (Live::OnDisk(on_disk), Err(Error::NotReserved));
        };
        let egress = self.attributes.borrow().egress.clone();
        let resumed = match on_disk.restore(&self.context, &self.handle, egress, disk).await {
            Ok(resumed) => resumed,
            Err(error) => return (Live::OnDisk(on_disk), Err(error)),
        };
        let Resumed { running, pid, pidfd } = resumed;
        tracing::debug!(%vm, pid, "VM {vm} is restored from disk");
        let process = VmmProcess { pid, resumed_at: Some(Timestamp::now()) };
        let before = self.handle.replace_process(process);
        self.show(GuestAccess::Running(running.guest.clone()));
        let restored = PauseChange::Restored { pid, by, memory: disk.is_none() };
        if let Err(error) = self.record(restored, command).await {
            self.show(GuestAccess::Paused(Pause { to: PausedTo::Disk, by: on_disk.by }));
            self.handle.replace_process(before);
            on_disk::end_vmm(&self.context.keeper, vm).await;
            return (Live::OnDisk(on_disk), Err(error));
        }
        tracing::debug!(%vm, pid, "VM {vm} is resumed on record");
        self.context.registry.take_pid(&self.handle);
        self.exit = Some(Box::pin(exited(pidfd)));
        self.reservation = Some(reservation);
        self.disk.replace(&Arc::clone(&running.machine));
        on_disk::remove_in_background(&self.context.keeper, &self.handle, on_disk.snapshot).await;
        (Live::Running(running), Ok(()))
    }
}
