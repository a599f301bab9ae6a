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
    handle::{GuestAccess, ResumeOrder, StateCommand, not_on_disk},
    on_disk::{self, OnDisk, Resumed},
    task::{VmTask, exited},
};
use crate::{DiskReservation, Error};

impl VmTask {
    /// Pauses the VM to disk. The quota is checked before anything is stopped.
    pub(super) async fn pause_to_disk(&mut self, state: Live, command: StateCommand, by: PausedBy) -> Live {
        let (state, outcome) = match state {
            Live::OnDisk(_) => self.record_reason(state, &command, by).await,
            state => match self.context.disk_quotas.reserve_pause(&self.handle).await {
                // Kept until the VM is on disk, where it is counted.
                Ok(mut disk) => self.store_within(state, &command, by, &mut disk).await,
                Err(error) => (state, Err(error)),
            },
        };
        self.access.send_replace(GuestAccess::of(&state));
        self.answer("paused to disk", command, outcome);
        state
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
            // The pause failed, and it is still paused on record.
            Live::Running(running) => match running.pause(before).await {
                Ok(paused) => Live::Paused(paused),
                Err((running, _)) => Live::Running(running),
            },
            state => state,
        };
        (state, outcome)
    }

    async fn store(
        &mut self,
        running: Running,
        command: &StateCommand,
        by: PausedBy,
        disk: &mut DiskReservation,
    ) -> (Live, Result<(), Error>) {
        let (vm, snapshot) = (self.facts.id, TemplateId::generate());
        // Before the files exist, so that no comparison of records and files removes them.
        self.handle.set_snapshot(Some(snapshot));
        if let Err(error) = running.store(&self.context, &self.handle, snapshot, disk).await {
            return (Live::Running(running), Err(error));
        }
        tracing::debug!(%vm, %snapshot, "VM {vm} is stored on disk");
        // Before the record: who receives its event finds the new state.
        self.access.send_replace(GuestAccess::Paused(Pause { to: PausedTo::Disk, by }));
        if let Err(error) = self.record(PauseChange::PausedToDisk { snapshot, by }, command).await {
            running.undo_store(&self.context.keeper, &self.handle, snapshot).await;
            return (Live::Running(running), Err(error));
        }
        tracing::debug!(%vm, %snapshot, "VM {vm} is on disk on record");
        self.exit = None;
        on_disk::end_vmm(&self.context.keeper, &self.handle).await;
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
        let reservation = reservation
            .unwrap_or_else(|| self.context.budget.reserve_running(self.facts.account, self.facts.memory_mb));
        let egress = self.attributes.borrow().egress.clone();
        let resumed = match on_disk.restore(&self.context, &self.handle, egress, disk).await {
            Ok(resumed) => resumed,
            Err(error) => return (Live::OnDisk(on_disk), Err(error)),
        };
        let Resumed { running, pid, pidfd } = resumed;
        tracing::debug!(%vm, pid, "VM {vm} is restored from disk");
        self.handle.set_vmm(pid, Timestamp::now());
        self.access.send_replace(GuestAccess::Running(running.guest.clone()));
        let restored = PauseChange::Restored { pid, by, memory: disk.is_none() };
        if let Err(error) = self.record(restored, command).await {
            self.access.send_replace(GuestAccess::Paused(Pause { to: PausedTo::Disk, by: on_disk.by }));
            on_disk::end_vmm(&self.context.keeper, &self.handle).await;
            return (Live::OnDisk(on_disk), Err(error));
        }
        tracing::debug!(%vm, pid, "VM {vm} is resumed on record");
        self.exit = Some(Box::pin(exited(pidfd)));
        self.reservation = Some(reservation);
        self.disk.replace(&Arc::clone(&running.machine));
        on_disk::remove_in_background(&self.context.keeper, &self.handle, on_disk.snapshot).await;
        (Live::Running(running), Ok(()))
    }
}
