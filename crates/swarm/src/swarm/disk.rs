//! Disk space for boots, snapshots and builds of templates.

use skep_api::{AccountId, VmId, keys::Limits};

use super::Swarm;
use crate::{
    DiskReservation, Error,
    template::{BootState, BootTemplate},
    vm::BootedVm,
};

impl Swarm {
    /// Reserves disk space for a snapshot of a VM. Keep it until the snapshot is recorded.
    ///
    /// # Errors
    /// Unknown VM, or `quota_exceeded`.
    pub async fn reserve_snapshot(&self, account: &AccountId, vm: VmId) -> Result<DiskReservation, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        self.0.surroundings.disk_quotas.reserve_snapshot(&handle).await
    }

    /// Reserves disk space for a template with so much memory. Keep it until the template is recorded.
    ///
    /// # Errors
    /// `quota_exceeded`.
    pub async fn reserve_template(
        &self,
        account: &AccountId,
        memory_mb: u64,
    ) -> Result<DiskReservation, Error> {
        let bytes = memory_mb.saturating_mul(1 << 20);
        self.0.surroundings.disk_quotas.reserve_bytes(*account, bytes).await
    }

    /// What the account occupies on disk outside of its workspace, and what its requests in progress are going to, in bytes.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn bytes_outside_workspace(&self, account: &AccountId) -> Result<u64, Error> {
        self.0.surroundings.disk_quotas.bytes_outside_workspace(*account).await
    }

    /// Reserves disk space for the layers of a boot, if the account has a limit. Those of a fork are as large as that of its
    /// parent; those of a template are known when the VMs have started.
    pub(super) async fn reserve_layers(
        &self,
        account: AccountId,
        limits: &Limits,
        template: &BootTemplate,
        vms: u32,
    ) -> Result<Option<DiskReservation>, Error> {
        if limits.max_disk_mb.is_none() {
            return Ok(None);
        }
        let quotas = &self.0.surroundings.disk_quotas;
        let one = match template.source {
            BootState::Fork { parent, .. } => quotas.layer_bytes(parent),
            BootState::Baked | BootState::Snapshot | BootState::Disk { .. } => 0,
        };
        // At least something, so that nothing is booted where the limit is reached.
        let bytes = one.saturating_mul(u64::from(vms)).max(1);
        Ok(Some(quotas.reserve_bytes(account, bytes).await?))
    }

    /// Counts the layers of booted VMs. Ends the VMs if they exceed the limit of the account.
    pub(super) async fn settle_layers(
        &self,
        disk: Option<&mut DiskReservation>,
        booted: Vec<BootedVm>,
    ) -> Result<Vec<BootedVm>, Error> {
        let Some(disk) = disk else { return Ok(booted) };
        let settled = disk.settle_boot(booted.iter().map(|vm| vm.facts.id).collect()).await;
        if let Err(error) = settled {
            self.0.booter.end_unrecorded(booted).await;
            return Err(error);
        }
        Ok(booted)
    }
}
