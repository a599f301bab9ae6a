//! What an account may occupy on disk: its templates, its VMs on disk, the disk layers of its other VMs, and the files of its
//! workspace.
//!
//! Each request that adds to it reserves space first, by an estimate. What it made is measured before the request succeeds, and
//! refused if that exceeds the limit. What guests write to their disks meanwhile is counted, and not refused: the next request
//! is.

mod refusal;
mod reservation_table;
#[cfg(test)]
mod tests;
mod workspace_files;

use std::{collections::BTreeSet, sync::Arc};

use skep_api::{AccountId, VmId, keys::Limits};
use skep_keeper_protocol::{Load, ServerEnd, TemplateStatus};
use skep_store::{AccountDisk, TemplateStore};

use self::{
    refusal::check_pauses,
    reservation_table::{OtherReservations, ReservationTable, ReservedSpace},
};
pub use self::{
    refusal::{check_disk, disk_refusal},
    workspace_files::WorkspaceFiles,
};
use crate::{Error, budget::Budget, registry::Registry, usage::UsageSamples, vm::VmHandle};

/// The disk space of all accounts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct DiskQuotas(Arc<Inner>);

struct Inner {
    keeper: ServerEnd,
    budget: Arc<Budget>,
    registry: Arc<Registry>,
    templates: Arc<dyn TemplateStore>,
    workspaces: Arc<dyn WorkspaceFiles>,
    usage: UsageSamples,
    reservations: ReservationTable,
}

/// Disk space for what a request makes. Drop it when that is counted: in the record of a template, or in the registry of VMs.
pub struct DiskReservation {
    quotas: DiskQuotas,
    number: u64,
    space: ReservedSpace,
}

impl DiskQuotas {
    pub(crate) fn new(
        keeper: ServerEnd,
        budget: Arc<Budget>,
        registry: Arc<Registry>,
        templates: Arc<dyn TemplateStore>,
        workspaces: Arc<dyn WorkspaceFiles>,
        usage: UsageSamples,
    ) -> Self {
        Self(Arc::new(Inner {
            keeper,
            budget,
            registry,
            templates,
            workspaces,
            usage,
            reservations: ReservationTable::default(),
        }))
    }

    /// What the account occupies, in bytes, by the last sample of its VMs. The files of its workspace are counted only if it has a
    /// limit.
    ///
    /// # Errors
    /// The store is not available.
    pub(crate) async fn used_bytes(&self, account: AccountId) -> Result<u64, Error> {
        let AccountDisk { limits, templates_bytes } = self.0.templates.account_disk(account).await?;
        let files = match limits.max_disk_mb {
            Some(_) => self.0.workspaces.used_bytes(account).await,
            None => 0,
        };
        Ok(templates_bytes + self.vms_bytes(account, &BTreeSet::new()) + files)
    }

    /// What the account occupies outside of its workspace, and what its requests in progress are going to, in bytes.
    ///
    /// # Errors
    /// The store is not available.
    pub(crate) async fn bytes_outside_workspace(&self, account: AccountId) -> Result<u64, Error> {
        // First, because a reservation ends when what was made is counted elsewhere.
        let reserved = self.0.reservations.of(account);
        let AccountDisk { templates_bytes, .. } = self.0.templates.account_disk(account).await?;
        let vms = self.vms_bytes(account, &reserved.vms);
        Ok(templates_bytes.saturating_add(reserved.bytes).saturating_add(vms))
    }

    /// Reserves space for a pause of this VM to disk.
    ///
    /// # Errors
    /// `quota_exceeded`; the store or the keeper is not available.
    pub(crate) async fn reserve_pause(&self, vm: &VmHandle) -> Result<DiskReservation, Error> {
        let bytes = self.copy_bytes(vm).await?;
        let (account, vms) = (vm.facts.account, vec![vm.facts.id]);
        self.reserve(ReservedSpace { account, bytes, vms, is_pause: true }).await
    }

    /// Reserves space for a snapshot of this VM.
    ///
    /// # Errors
    /// As [`DiskQuotas::reserve_pause`].
    pub(crate) async fn reserve_snapshot(&self, vm: &VmHandle) -> Result<DiskReservation, Error> {
        let bytes = self.copy_bytes(vm).await?;
        self.reserve_bytes(vm.facts.account, bytes).await
    }

    /// Reserves space for something of about this size.
    ///
    /// # Errors
    /// As [`DiskQuotas::reserve_pause`].
    pub(crate) async fn reserve_bytes(
        &self,
        account: AccountId,
        bytes: u64,
    ) -> Result<DiskReservation, Error> {
        self.reserve(ReservedSpace { account, bytes, vms: Vec::new(), is_pause: false }).await
    }

    async fn reserve(&self, space: ReservedSpace) -> Result<DiskReservation, Error> {
        let (number, others) = self.0.reservations.add(space.clone());
        let reservation = DiskReservation { quotas: self.clone(), number, space };
        self.check(&reservation.space, &others).await?;
        Ok(reservation)
    }

    async fn check(&self, space: &ReservedSpace, others: &OtherReservations) -> Result<(), Error> {
        let AccountDisk { limits, templates_bytes } = self.0.templates.account_disk(space.account).await?;
        if space.is_pause {
            check_pauses(&limits, self.vms_on_disk(space.account, &others.vms) + others.pauses)?;
        }
        self.check_bytes(&limits, templates_bytes, space, others).await
    }

    async fn check_bytes(
        &self,
        limits: &Limits,
        templates_bytes: u64,
        space: &ReservedSpace,
        others: &OtherReservations,
    ) -> Result<(), Error> {
        if limits.max_disk_mb.is_none() {
            return Ok(());
        }
        self.0.usage.take(&self.0.keeper, &self.0.budget).await?;
        let reserved: BTreeSet<VmId> = others.vms.iter().chain(&space.vms).copied().collect();
        let vms = self.vms_bytes(space.account, &reserved);
        let occupied = templates_bytes.saturating_add(vms);
        let files = self.files_beside(space.account, occupied);
        let check = |files: u64| {
            check_disk(limits, occupied.saturating_add(others.bytes).saturating_add(files), space.bytes)
        };
        if files.is_some_and(|files| check(files).is_ok()) {
            return Ok(());
        }
        // They are unknown, or files that were removed are among them until they are counted again.
        let counted = self.0.workspaces.count(space.account).await;
        match (self.files_beside(space.account, occupied), counted) {
            (Some(files), _) => Ok(check(files)?),
            (None, counted) => Ok(counted?),
        }
    }

    /// The files of the workspace as far as they are known. What the account has reserved becomes known to its uploads at the moment
    /// at which their figure is read.
    fn files_beside(&self, account: AccountId, occupied: u64) -> Option<u64> {
        let reserved = self.0.reservations.of(account).bytes;
        self.0.workspaces.used_beside(account, occupied.saturating_add(reserved))
    }

    /// The VMs of the account that are on disk, without these.
    fn vms_on_disk(&self, account: AccountId, without: &BTreeSet<VmId>) -> u32 {
        let vms = self.0.registry.of(account);
        let on_disk = vms.iter().filter(|vm| vm.is_on_disk() && !without.contains(&vm.facts.id)).count();
        u32::try_from(on_disk).unwrap_or(u32::MAX)
    }

    /// What the VMs of the account occupy, without these, in bytes.
    fn vms_bytes(&self, account: AccountId, without: &BTreeSet<VmId>) -> u64 {
        let vms = self.0.registry.of(account);
        let counted = vms.iter().filter(|vm| !without.contains(&vm.facts.id));
        counted
            .map(|vm| if vm.is_on_disk() { vm.stored_bytes() } else { self.layer_bytes(vm.facts.id) })
            .sum()
    }

    /// What the disk layer of a VM with a VMM occupies, in bytes, by the last sample.
    pub(crate) fn layer_bytes(&self, vm: VmId) -> u64 {
        self.0.usage.of(vm).map_or(0, |load| load.disk_bytes)
    }

    /// What a copy of a VM takes about: its disk layer, and the memory of its VMM beyond the usual overhead. What the VM has in
    /// common with a snapshot that it continues is not in that figure.
    async fn copy_bytes(&self, vm: &VmHandle) -> Result<u64, Error> {
        let usage = &self.0.usage;
        if usage.of(vm.facts.id).is_none() {
            usage.take(&self.0.keeper, &self.0.budget).await?;
        }
        let overhead_bytes = self.0.budget.promise_of_one_mb(0).saturating_mul(1 << 20);
        let of_load = |load: Load| load.disk_bytes + load.held_bytes.saturating_sub(overhead_bytes);
        Ok(usage.of(vm.facts.id).map_or(0, of_load))
    }
}

impl DiskReservation {
    /// Replaces the estimate by what was stored.
    ///
    /// # Errors
    /// `quota_exceeded`: it is larger than the estimate, and exceeds the limit; the store or the keeper is not available.
    pub async fn settle(&mut self, stored: &TemplateStatus) -> Result<(), Error> {
        let bytes = stored.own_bytes;
        self.settle_bytes(ReservedSpace { bytes, ..self.space.clone() }).await
    }

    /// Replaces the estimate by what the disk layers of these new VMs occupy.
    ///
    /// # Errors
    /// As [`DiskReservation::settle`].
    pub(crate) async fn settle_boot(&mut self, vms: Vec<VmId>) -> Result<(), Error> {
        let Inner { usage, keeper, budget, .. } = &*self.quotas.0;
        usage.take(keeper, budget).await?;
        let bytes = vms.iter().map(|vm| self.quotas.layer_bytes(*vm)).sum();
        self.settle_bytes(ReservedSpace { bytes, vms, ..self.space.clone() }).await
    }

    async fn settle_bytes(&mut self, space: ReservedSpace) -> Result<(), Error> {
        let reservations = &self.quotas.0.reservations;
        let estimate = self.space.bytes;
        self.space = space.clone();
        if space.bytes <= estimate {
            reservations.shrink(self.number, space);
            return Ok(());
        }
        let (number, others) = reservations.enlarge(self.number, space);
        self.number = number;
        let account = self.space.account;
        let AccountDisk { limits, templates_bytes } = self.quotas.0.templates.account_disk(account).await?;
        self.quotas.check_bytes(&limits, templates_bytes, &self.space, &others).await
    }
}

impl Drop for DiskReservation {
    fn drop(&mut self) {
        self.quotas.0.reservations.release(self.number);
    }
}
