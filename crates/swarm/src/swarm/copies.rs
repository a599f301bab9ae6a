//! Copies of VMs: forks, which run at once, and snapshots, which are stored as templates.

use std::sync::Arc;

use skep_api::{AccountId, TemplateId, VmId};
use skep_keeper_protocol::{StorePurpose, TemplateStatus};

use super::{AwakeVm, Swarm};
use crate::{
    BootSpec, Error,
    budget::Reservation,
    template::BootTemplate,
    vm::{BootedVm, CopyPurpose},
};

impl Swarm {
    /// Stores a running VM as a template with this id: files, memory and processes as they are. The VM stands still
    /// meanwhile, and runs on.
    ///
    /// # Errors
    /// A VM that was paused or ended meanwhile, a guest that does not freeze its programs, no memory or disk space for the copy, too
    /// many copies at the same time, or an update of the engine since the start of skep. Nothing is left behind then.
    pub async fn snapshot(&self, vm: AwakeVm, template: TemplateId) -> Result<TemplateStatus, Error> {
        let keeper = self.0.surroundings.keeper.clone();
        // In a task of its own, so that a cancelled request does not leave a capture behind.
        tokio::spawn(async move {
            let _permit = vm.handle.copy(template, CopyPurpose::Snapshot).await?;
            let stored = keeper.store_capture(template, StorePurpose::Template).await;
            let dropped = keeper.drop_capture(template).await;
            let stored = stored?;
            dropped?;
            let vm = vm.handle.facts.id;
            tracing::info!(%vm, %template, "a snapshot of VM {vm} is stored");
            Ok(stored)
        })
        .await?
    }

    /// Copies a VM and boots all VMs of a request from the copy, which is freed again.
    pub(super) async fn boot_copies(
        &self,
        account: AccountId,
        order: &BootSpec,
        template: &Arc<BootTemplate>,
        parent: VmId,
        capture: TemplateId,
        reservation: Reservation,
    ) -> Result<Vec<BootedVm>, Error> {
        let parent = self.registry().by_id(account, parent)?;
        let _permit = parent.copy(capture, CopyPurpose::Fork).await?;
        let booted = self.0.booter.boot_all(account, order, template, reservation).await;
        // The VMs have mapped what they need of it.
        let dropped = self.0.surroundings.keeper.drop_capture(capture).await;
        let booted = booted?;
        if let Err(error) = dropped {
            self.0.booter.end_unrecorded(booted).await;
            return Err(error.into());
        }
        tracing::debug!(%capture, "the capture {capture} is freed after a fork");
        Ok(booted)
    }
}
