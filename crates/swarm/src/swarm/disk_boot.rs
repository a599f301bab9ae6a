//! VMs that start from the disk of a snapshot alone, whose memory may be outdated or damaged. The keeper boots a guest from the
//! disk and saves it, like a template that it builds; VMs are restored from that. So a VM that is on disk stays there, with
//! its snapshot, until the new VMM is on record.

use std::{sync::Arc, time::Duration};

use skep_api::{
    AccountId, ErrorCode, Failure, TemplateId, VmId,
    keys::Limits,
    swarm::{ResumedBy, Vm},
};
use skep_keeper_protocol::TemplateState;
use tokio::time::{sleep, timeout};

use super::Swarm;
use crate::{
    BootSpec, Error,
    budget::Reservation,
    template::BootTemplate,
    vm::{BootedVm, DiskBoot, ResumeOrder, VmHandle},
};

/// Time limit of the boot of a guest. The keeper tries again within it, and boots one guest after the other.
const TIMEOUT: Duration = Duration::from_mins(10);
/// How often the keeper is asked for the outcome.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Swarm {
    /// Starts a VM that is paused to disk again from its disk alone, and returns its record.
    ///
    /// # Errors
    /// As [`Swarm::resume`]; a VM that is not paused to disk, a damaged disk, a guest that does not boot. The VM stays on disk
    /// then.
    pub async fn resume_without_memory(
        &self,
        account: &AccountId,
        limits: &Limits,
        vm: VmId,
        request_id: &str,
    ) -> Result<Vm, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        let (swarm, account, limits) = (self.clone(), *account, *limits);
        let request_id = request_id.to_owned();
        // In a task of its own, so that a cancelled request does not leave a guest behind.
        tokio::spawn(async move {
            // Calls that need a VM which was paused for being idle wait for it.
            let _alone = handle.activity.resume_alone().await;
            let snapshot = handle.require_on_disk()?;
            let reservation = swarm.reserve_resume(account, &limits, &handle, snapshot).await?;
            let disk = DiskBoot { snapshot, booted: TemplateId::generate() };
            swarm.boot_disk(disk.booted, snapshot).await?;
            tracing::debug!(%vm, "a guest is booted from the disk of VM {vm}");
            let order =
                ResumeOrder { by: ResumedBy::Request, reservation: Some(reservation), disk: Some(disk) };
            let resumed = handle.resume(order, Some(&request_id)).await;
            if resumed.is_err() {
                swarm.drop_disk(disk.booted).await;
            }
            resumed
        })
        .await?
    }

    /// Reserves capacity for a VM that is on disk.
    pub(super) async fn reserve_resume(
        &self,
        account: AccountId,
        limits: &Limits,
        handle: &VmHandle,
        snapshot: TemplateId,
    ) -> Result<Reservation, Error> {
        // The template is only used for the size: no parked VM takes the place of this one.
        let template = BootTemplate::fork(&handle.facts, handle.record().egress, snapshot);
        self.reserve(account, limits, &template, 1).await
    }

    /// Boots all VMs of a request from the disk of a snapshot.
    pub(super) async fn boot_from_disk(
        &self,
        account: AccountId,
        order: &BootSpec,
        template: &Arc<BootTemplate>,
        booted: TemplateId,
        reservation: Reservation,
    ) -> Result<Vec<BootedVm>, Error> {
        self.boot_disk(booted, template.id).await?;
        let vms = self.0.booter.boot_all(account, order, template, reservation).await;
        if vms.is_err() {
            self.drop_disk(booted).await;
        }
        vms
    }

    /// Boots a guest from the disk of a snapshot, which becomes a template of the keeper with this id. The keeper removes it
    /// when no VM needs it.
    async fn boot_disk(&self, booted: TemplateId, snapshot: TemplateId) -> Result<(), Error> {
        self.0.surroundings.keeper.boot_disk(booted, snapshot).await?;
        let outcome = timeout(TIMEOUT, self.wait_for_disk(booted)).await.unwrap_or_else(|_| {
            let message = format!(
                "the guest did not boot from the disk within {} minutes; the machine may be overloaded: try again later",
                TIMEOUT.as_secs() / 60
            );
            Err(Failure::new(ErrorCode::GuestTimeout, message).into())
        });
        if outcome.is_err() {
            self.drop_disk(booted).await;
        }
        outcome
    }

    async fn wait_for_disk(&self, booted: TemplateId) -> Result<(), Error> {
        loop {
            match self.0.surroundings.keeper.template_status(booted).await?.state {
                TemplateState::Building { .. } => sleep(POLL_INTERVAL).await,
                TemplateState::Ready { .. } => return Ok(()),
                TemplateState::Failed { failure } => return Err(failure.into()),
                TemplateState::Damaged { reason } | TemplateState::Outdated { reason } => {
                    let message = format!(
                        "the guest that was booted from the disk cannot be used ({reason}); try again"
                    );
                    return Err(Failure::new(ErrorCode::TemplateNotReady, message).into());
                }
            }
        }
    }

    /// Removes a guest that no VM was started from. If that fails, the keeper does it later.
    async fn drop_disk(&self, booted: TemplateId) {
        if let Err(error) = self.0.surroundings.keeper.remove_template(booted).await
            && error.code() != ErrorCode::UnknownTemplate
        {
            tracing::debug!(%booted, %error, "the guest {booted} is not removed yet: {error}");
        }
    }
}
