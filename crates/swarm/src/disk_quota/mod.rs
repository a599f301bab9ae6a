//! What an account may occupy on disk: its templates, its VMs on disk, and the disk layers of its other VMs.
//!
//! Each request that adds to it reserves space first, by an estimate. What it made is measured before the request succeeds, and
//! refused if that exceeds the limit. What guests write to their disks meanwhile is counted, and not refused: the next request
//! is.

mod claims;
mod refusal;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use skep_api::{AccountId, VmId, keys::Limits};
use skep_keeper_protocol::{Load, ServerEnd, TemplateStatus};
use skep_store::{AccountDisk, TemplateStore};

use self::{
    claims::{Claim, Claims, Others},
    refusal::{check_disk, check_pauses},
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
    usage: UsageSamples,
    claims: Claims,
}

/// Disk space for what a request makes. Drop it when that is counted: in the record of a template, or in the registry of VMs.
pub struct DiskReservation {
    quotas: DiskQuotas,
    number: u64,
    claim: Claim,
}

impl DiskQuotas {
    pub(crate) fn new(
        keeper: ServerEnd,
        budget: Arc<Budget>,
        registry: Arc<Registry>,
        templates: Arc<dyn TemplateStore>,
        usage: UsageSamples,
    ) -> Self {
        Self(Arc::new(Inner { keeper, budget, registry, templates, usage, claims: Claims::default() }))
    }

    /// What the account occupies, in bytes, by the last sample of its VMs.
    ///
    /// # Errors
    /// The store is not available.
    pub(crate) async fn used_bytes(&self, account: AccountId) -> Result<u64, Error> {
        let AccountDisk { templates_bytes, .. } = self.0.templates.account_disk(account).await?;
        Ok(templates_bytes + self.vms_bytes(account, &BTreeSet::new()))
    }

    /// Reserves space for a pause of this VM to disk.
    ///
    /// # Errors
    /// `quota_exceeded`; the store or the keeper is not available.
    pub(crate) async fn reserve_pause(&self, vm: &VmHandle) -> Result<DiskReservation, Error> {
        let bytes = self.copy_bytes(vm).await?;
        let (account, vms) = (vm.facts.account, vec![vm.facts.id]);
        self.reserve(Claim { account, bytes, vms, is_pause: true }).await
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
        self.reserve(Claim { account, bytes, vms: Vec::new(), is_pause: false }).await
    }

    async fn reserve(&self, claim: Claim) -> Result<DiskReservation, Error> {
        let (number, others) = self.0.claims.add(claim.clone());
        let reservation = DiskReservation { quotas: self.clone(), number, claim };
        self.check(&reservation.claim, &others).await?;
        Ok(reservation)
    }

    async fn check(&self, claim: &Claim, others: &Others) -> Result<(), Error> {
        let AccountDisk { limits, templates_bytes } = self.0.templates.account_disk(claim.account).await?;
        if claim.is_pause {
            check_pauses(&limits, self.vms_on_disk(claim.account, &others.vms) + others.pauses)?;
        }
        self.check_bytes(&limits, templates_bytes, claim, others).await
    }

    async fn check_bytes(
        &self,
        limits: &Limits,
        templates_bytes: u64,
        claim: &Claim,
        others: &Others,
    ) -> Result<(), Error> {
        if limits.max_disk_mb.is_none() {
            return Ok(());
        }
        self.0.usage.take(&self.0.keeper, &self.0.budget).await?;
        let claimed: BTreeSet<VmId> = others.vms.iter().chain(&claim.vms).copied().collect();
        let vms = self.vms_bytes(claim.account, &claimed);
        Ok(check_disk(limits, templates_bytes.saturating_add(others.bytes).saturating_add(vms), claim.bytes)?)
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
    /// Replaces the estimate by what was stored, and returns its size in bytes.
    ///
    /// # Errors
    /// `quota_exceeded`: it is larger than the estimate, and exceeds the limit; the store or the keeper is not available.
    pub async fn settle(&mut self, stored: &TemplateStatus) -> Result<u64, Error> {
        let bytes = stored_bytes(stored);
        self.settle_bytes(Claim { bytes, ..self.claim.clone() }).await?;
        Ok(bytes)
    }

    /// Replaces the estimate by what the disk layers of these new VMs occupy.
    ///
    /// # Errors
    /// As [`DiskReservation::settle`].
    pub(crate) async fn settle_boot(&mut self, vms: Vec<VmId>) -> Result<(), Error> {
        let Inner { usage, keeper, budget, .. } = &*self.quotas.0;
        usage.take(keeper, budget).await?;
        let bytes = vms.iter().map(|vm| self.quotas.layer_bytes(*vm)).sum();
        self.settle_bytes(Claim { bytes, vms, ..self.claim.clone() }).await
    }

    async fn settle_bytes(&mut self, claim: Claim) -> Result<(), Error> {
        let claims = &self.quotas.0.claims;
        let estimate = self.claim.bytes;
        self.claim = claim.clone();
        if claim.bytes <= estimate {
            claims.shrink(self.number, claim);
            return Ok(());
        }
        let (number, others) = claims.enlarge(self.number, claim);
        self.number = number;
        let account = self.claim.account;
        let AccountDisk { limits, templates_bytes } = self.quotas.0.templates.account_disk(account).await?;
        self.quotas.check_bytes(&limits, templates_bytes, &self.claim, &others).await
    }
}

impl Drop for DiskReservation {
    fn drop(&mut self) {
        self.quotas.0.claims.release(self.number);
    }
}

/// What only this template occupies, in bytes, in every state.
pub(crate) fn stored_bytes(template: &TemplateStatus) -> u64 {
    template.own_bytes
}
