//! Boots: takes VMs from the pool and restores further ones. All VMs of a request boot, or none.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::{StreamExt, future::join_all, stream};
use skep_api::{
    AccountId, ErrorCode, VmId,
    swarm::{BootReceipt, BootSource},
};
use skep_channel::new_exec_id;
use skep_store::{VmAttributes, VmBooted};

use crate::{
    BootSpec, Error,
    budget::Reservation,
    parked_vm::ParkedVm,
    pool::Pool,
    restore::{Environment, Restored},
    round_ms,
    template::{BootState, BootTemplate},
    vm::BootedVm,
};

/// Concurrent restores. They are CPU-bound, so more would only delay each of them.
const MAX_CONCURRENT_BOOTS: usize = 4;

pub(crate) struct Booter {
    pub(crate) pool: Arc<Pool>,
}

impl Booter {
    /// Boots all VMs of a request. If one fails, all are ended.
    pub(crate) async fn boot_all(
        &self,
        account: AccountId,
        order: &BootSpec,
        template: &Arc<BootTemplate>,
        mut reservation: Reservation,
    ) -> Result<Vec<BootedVm>, Error> {
        let _under_way = self.pool.guard_boot();
        let mut parked = self.pool.take(template, order.count).into_iter();
        self.pool.evict_if_overcommitted().await;
        let parts: Vec<(Option<ParkedVm>, Reservation)> =
            (0..order.count).map(|_| (parked.next(), reservation.split_one())).collect();
        let failing = AtomicBool::new(false);
        let mut boots = stream::iter(parts)
            .map(|(parked, part)| self.boot_one(account, order, template, parked, part, &failing))
            .buffer_unordered(MAX_CONCURRENT_BOOTS);
        let mut booted = Vec::new();
        let mut failed = None;
        // After a failure no further boot begins. Those in progress complete and remove their own resources.
        while let Some(outcome) = boots.next().await {
            match outcome {
                Ok(vm) => booted.extend(vm),
                Err(error) => {
                    failing.store(true, Ordering::Relaxed);
                    // A damaged template makes the keeper kill the other VMs, so it is the cause even if another error
                    // came first.
                    if failed.is_none() || error.code() == ErrorCode::TemplateDamaged {
                        failed = Some(error);
                    }
                }
            }
        }
        drop(boots);
        // A VM that was ready early may have ended since.
        let ended = booted.iter().find(|vm| vm.guest.is_closed());
        match failed.or_else(|| ended.map(|vm| not_booted(vm.facts.id, template, Error::EndedEarly))) {
            None => Ok(booted),
            Some(error) => {
                self.end_unrecorded(booted).await;
                Err(error)
            }
        }
    }

    /// Ends booted VMs that are not recorded.
    pub(crate) async fn end_unrecorded(&self, booted: Vec<BootedVm>) {
        join_all(booted.iter().map(|vm| self.pool.restorer.end_unrecorded(vm.facts.id))).await;
    }

    /// `None` if another VM of the request failed before.
    async fn boot_one(
        &self,
        account: AccountId,
        order: &BootSpec,
        template: &BootTemplate,
        parked: Option<ParkedVm>,
        reservation: Reservation,
        failing: &AtomicBool,
    ) -> Result<Option<BootedVm>, Error> {
        if let Some(parked) = parked {
            let id = parked.id();
            if failing.load(Ordering::Relaxed) {
                // It is unused, but the pool cannot take VMs back.
                self.pool.restorer.end_unrecorded(id).await;
                return Ok(None);
            }
            match parked.hand_out(&self.pool.restorer.keeper, &order.env, order.arrived).await {
                Ok(receipt) => {
                    return Ok(Some(booted(account, order, template, parked.vm, receipt, reservation)));
                }
                Err(error) => {
                    tracing::warn!(vm = %id, %error, "VM {id} of the pool could not be handed out; another takes its place");
                    self.pool.restorer.end_unrecorded(id).await;
                }
            }
        }
        if failing.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (id, restored) = match self.restore(order, template).await {
            // One retry: the failure of one guest or VMM does not predict the next.
            Err((_, error)) if error.affects_one_vm_only() && !failing.load(Ordering::Relaxed) => {
                self.restore(order, template).await
            }
            first => first,
        }
        .map_err(|(id, error)| not_booted(id, template, error))?;
        if let Err(error) = self.pool.restorer.keeper.commit(id).await {
            self.pool.restorer.end_unrecorded(id).await;
            return Err(not_booted(id, template, error.into()));
        }
        tracing::debug!(vm = %id, "VM {id} is committed");
        let receipt = cold_receipt(&restored, order);
        Ok(Some(booted(account, order, template, restored, receipt, reservation)))
    }

    async fn restore(
        &self,
        order: &BootSpec,
        template: &BootTemplate,
    ) -> Result<(VmId, Restored), (VmId, Error)> {
        let id = VmId::generate();
        let environment = match template.source {
            BootState::Baked | BootState::Snapshot | BootState::Disk { .. } => Environment::Given(&order.env),
            BootState::Fork { .. } => Environment::KeptWith(&order.env),
        };
        let restored = self.pool.restorer.restore(id, template.launched_from(), environment).await;
        restored.map(|restored| (id, restored)).map_err(|error| (id, error))
    }
}

fn cold_receipt(restored: &Restored, order: &BootSpec) -> BootReceipt {
    BootReceipt {
        source: BootSource::Cold,
        restore_ms: round_ms(restored.restore),
        identity_ms: round_ms(restored.identity),
        ready_ms: round_ms(order.arrived.elapsed()),
        reseeded: restored.report.reseeded,
        clock_step_ms: restored.report.clock_step_ms,
    }
}

fn booted(
    account: AccountId,
    order: &BootSpec,
    template: &BootTemplate,
    vm: Restored,
    boot: BootReceipt,
    reservation: Reservation,
) -> BootedVm {
    let Restored { launched, pidfd, console, machine, guest, .. } = vm;
    let facts = VmBooted {
        id: launched.vm,
        account,
        pid: launched.pid,
        ip: launched.ip.to_string(),
        template: template.name.clone(),
        template_id: template.id,
        parent: match template.source {
            BootState::Fork { parent, .. } => Some(parent),
            BootState::Baked | BootState::Snapshot | BootState::Disk { .. } => None,
        },
        vcpus: launched.vcpus,
        memory_mb: launched.memory_mb,
        started_at: order.started_at,
        ticket: order.work.as_ref().map(|work| work.ticket),
        exec_id: order.command.as_ref().map(|_| new_exec_id()),
        boot,
        attributes: VmAttributes {
            expires_at: order.ttl.and_then(|ttl| order.started_at.checked_add(ttl).ok()),
            ..order.attributes.clone()
        },
    };
    // By the monotonic clock: the wall clock may be changed during a boot.
    let deadline = order.ttl.and_then(|ttl| order.arrived.checked_add(ttl));
    BootedVm { facts, guest, console, machine, pidfd, arrived: order.arrived, deadline, reservation }
}

fn not_booted(vm: VmId, template: &BootTemplate, source: Error) -> Error {
    Error::NotBooted { vm, template: template.name.clone(), source: Box::new(source) }
}
