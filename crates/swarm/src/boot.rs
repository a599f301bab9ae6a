//! A boot: launch, restore, identity. All of its VMs, or none.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{
    StreamExt,
    future::{self, join_all},
    stream,
};
use skep_api::{
    AccountId, ErrorCode, VmId,
    swarm::{BootReceipt, BootSource},
};
use skep_channel::{Guest, IdentityReport};
use skep_engine::{Driver, Machine};
use skep_keeper_protocol::{Launched, LaunchedVm, ServerEnd};
use skep_store::VmBooted;
use tokio::net::UnixStream;

use crate::{BootOrder, Error, budget::Reservation, console::ConsoleLog, identity, vm::BootedVm};

/// A guest takes a tenth of a second; on a machine where everything is asked for at once, many.
const GUEST_PATIENCE: Duration = Duration::from_secs(60);
/// Restores are work for processors: more at once only make each of them later.
const AT_ONCE: usize = 4;

/// What a boot needs.
pub(crate) struct Booter {
    pub(crate) keeper: ServerEnd,
    pub(crate) driver: Arc<dyn Driver>,
}

impl Booter {
    /// Boots all VMs of an order. Where one fails, none is left.
    pub(crate) async fn boot_all(
        &self,
        account: AccountId,
        order: &BootOrder,
        mut reservation: Reservation,
    ) -> Result<Vec<BootedVm>, Error> {
        let parts: Vec<Reservation> = (0..order.count).map(|_| reservation.split_one()).collect();
        let failing = AtomicBool::new(false);
        let mut boots = stream::iter(parts)
            .take_while(|_| future::ready(!failing.load(Ordering::Relaxed)))
            .map(|part| self.boot_one(account, order, part))
            .buffer_unordered(AT_ONCE);
        let mut booted = Vec::new();
        let mut failed = None;
        // After a failure no other begins, and those under way still end in order, each clearing away its own.
        while let Some(outcome) = boots.next().await {
            match outcome {
                Ok(vm) => booted.push(vm),
                Err(error) => {
                    failing.store(true, Ordering::Relaxed);
                    failed = failed.or(Some(error));
                }
            }
        }
        drop(boots);
        // The first may have been ready long ago.
        let ended = booted.iter().find(|vm| vm.guest.is_closed());
        match failed.or_else(|| ended.map(|vm| not_booted(vm.facts.id, order, Error::EndedEarly))) {
            None => Ok(booted),
            Some(error) => {
                self.undo(booted).await;
                Err(error)
            }
        }
    }

    /// Ends VMs that nobody was told of.
    pub(crate) async fn undo(&self, booted: Vec<BootedVm>) {
        join_all(booted.iter().map(|vm| self.clear_away(vm.facts.id))).await;
    }

    async fn boot_one(
        &self,
        account: AccountId,
        order: &BootOrder,
        reservation: Reservation,
    ) -> Result<BootedVm, Error> {
        let id = VmId::generate();
        let outcome = match self.keeper.launch(id, &order.template).await {
            Ok(launched) => self.bring_up(account, order, launched, reservation).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = &outcome {
            tracing::warn!(vm = %id, %error, "VM {id} could not be booted");
            // Also where the launch failed: it may have failed here, on what the keeper handed over.
            self.clear_away(id).await;
        }
        outcome.map_err(|error| not_booted(id, order, error))
    }

    async fn bring_up(
        &self,
        account: AccountId,
        order: &BootOrder,
        vm: LaunchedVm,
        reservation: Reservation,
    ) -> Result<BootedVm, Error> {
        let LaunchedVm { launched, pidfd, monitor, agent, console, state } = vm;
        let log = ConsoleLog::default();
        tokio::spawn(log.clone().follow(console));
        let restored = self.restore(monitor, state.into(), agent, &launched, order).await.inspect_err(|_| {
            let said = log.read().console;
            tracing::debug!(vm = %launched.vm, console = %said, "the console of a VM that did not come up");
        })?;
        let receipt = BootReceipt {
            source: BootSource::Cold,
            restore_ms: milliseconds(restored.restore),
            identity_ms: milliseconds(restored.identity),
            ready_ms: milliseconds(order.arrived.elapsed()),
            reseeded: restored.report.reseeded,
            clock_step_ms: restored.report.clock_step_ms,
        };
        Ok(BootedVm {
            facts: facts(account, order, &launched, receipt),
            guest: restored.guest,
            console: log,
            machine: restored.machine,
            pidfd,
            arrived: order.arrived,
            reservation,
        })
    }

    async fn restore(
        &self,
        monitor: UnixStream,
        state: OwnedFd,
        agent: UnixStream,
        launched: &Launched,
        order: &BootOrder,
    ) -> Result<Restored, Error> {
        let begun = Instant::now();
        let machine = self.driver.restore(monitor, state).await?;
        let restore = begun.elapsed();
        let begun = Instant::now();
        let guest = Guest::connect(agent, GUEST_PATIENCE).await?;
        let identity = identity::new(launched, &order.env);
        let report = guest.take_identity(&identity).await?;
        report.proves(&identity)?;
        Ok(Restored { machine, guest, report, restore, identity: begun.elapsed() })
    }

    /// Ends a VM, if there is one.
    pub(crate) async fn clear_away(&self, id: VmId) {
        if let Err(error) = self.keeper.end(id).await
            && error.code() != ErrorCode::UnknownVm
        {
            tracing::error!(vm = %id, %error, "what is left of VM {id} could not be cleared away");
        }
    }
}

/// A guest that runs under its own identity.
struct Restored {
    machine: Box<dyn Machine>,
    guest: Guest,
    report: IdentityReport,
    restore: Duration,
    identity: Duration,
}

fn facts(account: AccountId, order: &BootOrder, launched: &Launched, boot: BootReceipt) -> VmBooted {
    VmBooted {
        id: launched.vm,
        account,
        pid: launched.pid,
        ip: launched.ip.to_string(),
        template: order.template.clone(),
        vcpus: launched.vcpus,
        memory_mb: launched.memory_mb,
        metadata: order.metadata.clone(),
        started_at: order.started_at,
        expires_at: order.ttl.and_then(|ttl| order.started_at.checked_add(ttl).ok()),
        boot,
    }
}

fn not_booted(vm: VmId, order: &BootOrder, source: Error) -> Error {
    Error::NotBooted { vm, template: order.template.clone(), source: Box::new(source) }
}

/// To a microsecond: more digits would be noise.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
