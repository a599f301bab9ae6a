//! The record of a boot, and the start of its work.

use futures_util::future::join_all;
use jiff::Timestamp;
use skep_api::{
    egress::EgressPolicy,
    swarm::{BootAnswer, EndReason, Vm},
};
use skep_keeper_protocol::VmEgress;
use skep_store::RecordBoots;

use super::Swarm;
use crate::{
    BootSpec, Error, boot_command, round_ms, ticket_file,
    vm::{self, BootedVm, VmHandle},
};

impl Swarm {
    /// Records booted VMs, and starts their work. If that fails, none of them is left.
    pub(super) async fn record(&self, booted: Vec<BootedVm>, order: &BootSpec) -> Result<BootAnswer, Error> {
        let mut vms: Vec<Vm> = booted.iter().map(BootedVm::record).collect();
        vms.sort_by_key(|vm| vm.id);
        let mut answer = BootAnswer { vms, elapsed_ms: round_ms(order.arrived.elapsed()) };
        let command = RecordBoots {
            vms: booted.iter().map(|vm| vm.facts.clone()).collect(),
            at: Timestamp::now(),
            request_id: Some(order.request_id.clone()),
            attempt: order.work.clone(),
            answer: order.once.clone().map(|once| (once, answer.clone())),
        };
        // Before the record, which makes the VM's API key valid: no guest command runs yet, and after a refusal of the
        // keeper nothing is recorded.
        let prepared = match self.0.api.admit_all(&booted, order).await {
            Ok(()) => self.set_egress_of_all(&booted).await,
            Err(error) => Err(error),
        };
        let recorded = match prepared {
            Ok(()) => self.0.surroundings.store.record_boots(command).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            self.0.booter.end_unrecorded(booted).await;
            return Err(error);
        }
        tracing::debug!(count = booted.len(), "the VMs of a boot are on record");
        let mut handles = Vec::with_capacity(booted.len());
        for vm in booted {
            self.0.surroundings.observer.booted(&vm.facts.boot);
            handles.push(vm::spawn_vm_task(vm.recorded(), self.0.surroundings.clone()));
        }
        self.start_work_or_end_vms(&handles, order).await?;
        // With an idempotency key the answer must equal the stored one.
        if order.once.is_none() {
            answer.elapsed_ms = round_ms(order.arrived.elapsed());
        }
        Ok(answer)
    }

    /// Starts the work of booted VMs. If that fails, ends all of them.
    async fn start_work_or_end_vms(&self, vms: &[VmHandle], order: &BootSpec) -> Result<(), Error> {
        let Err(error) = self.start_work(vms, order).await else { return Ok(()) };
        let request_id = order.request_id.as_str();
        // The boot request itself ends them, so it does not count as an attempt at the ticket.
        for end in join_all(vms.iter().map(|vm| vm.end(EndReason::Deleted, Some(request_id)))).await {
            if let Err(error) = end {
                tracing::warn!(%error, "a VM whose command did not start is not ended yet: {error}");
            }
        }
        self.forget_answer(vms, order).await;
        Err(error)
    }

    /// Deletes the answer that was stored with the record, so that a retry does not get VMs that were ended.
    async fn forget_answer(&self, vms: &[VmHandle], order: &BootSpec) {
        let (Some(once), Some(vm)) = (&order.once, vms.first()) else { return };
        let store = &self.0.surroundings.store;
        if let Err(error) = store.forget_boot_answer(vm.facts.account, once.clone()).await {
            tracing::warn!(%error, "the answer of a boot that failed is still stored for its idempotency key: {error}");
        }
    }

    /// Writes the ticket file into the VM that works on it, and starts the command of the boot in all VMs.
    async fn start_work(&self, vms: &[VmHandle], order: &BootSpec) -> Result<(), Error> {
        let store = &self.0.surroundings.store;
        if let (Some(work), [vm]) = (&order.work, vms) {
            ticket_file::write(vm, &*self.0.tickets, work).await?;
        }
        let Some(command) = &order.command else { return Ok(()) };
        let starts = join_all(vms.iter().map(|vm| boot_command::start(vm, store, command))).await;
        starts.into_iter().collect()
    }

    /// Sets the policies of booted VMs. A VM without one reaches nothing.
    async fn set_egress_of_all(&self, booted: &[BootedVm]) -> Result<(), Error> {
        for vm in booted.iter().filter(|vm| vm.facts.attributes.egress != EgressPolicy::None) {
            let egress = VmEgress::new(vm.facts.account, vm.facts.attributes.egress.clone());
            self.0.surroundings.keeper.set_egress(vm.facts.id, egress).await?;
        }
        Ok(())
    }
}
