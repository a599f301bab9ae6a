//! Access of the routes to the swarm, and the check which VMs a key may reach.

use skep_api::{ErrorCode, Failure, Scope, VmId, VmRef};
use skep_swarm::{AwakeVm, Swarm};
use tokio::sync::watch;

use crate::{auth::Identity, error::Refusal, extract::check_scope};

/// The swarm, or the reason why there is none; `None` until that is known. A server that takes over from another one
/// serves before it has its swarm, which it gets once the other server is gone.
pub type SwarmReceiver = watch::Receiver<Option<Result<Swarm, String>>>;

/// A receiver whose value is already known.
pub fn ready_swarm(swarm: Result<Swarm, String>) -> SwarmReceiver {
    watch::Sender::new(Some(swarm)).subscribe()
}

/// A handle to the swarm. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SwarmHandle(SwarmReceiver);

impl SwarmHandle {
    pub(crate) fn new(swarm: SwarmReceiver) -> Self {
        Self(swarm)
    }

    /// The swarm. Waits until it is known whether there is one.
    ///
    /// # Errors
    /// `swarm_unavailable` with the reason.
    pub(crate) async fn swarm(&self) -> Result<Swarm, Failure> {
        // Where the sender is gone, the last value is used.
        let _ = self.0.clone().wait_for(Option::is_some).await;
        self.swarm_now()
    }

    /// The swarm, without waiting.
    ///
    /// # Errors
    /// `swarm_unavailable` with the reason.
    pub(crate) fn swarm_now(&self) -> Result<Swarm, Failure> {
        let none = |reason: &str| {
            Failure::new(ErrorCode::SwarmUnavailable, format!("this server runs no VMs: {reason}"))
        };
        match &*self.0.borrow() {
            Some(Ok(swarm)) => Ok(swarm.clone()),
            Some(Err(reason)) => Err(none(reason)),
            None => Err(none("it is being started again, and takes them over in a moment")),
        }
    }

    /// Whether the swarm is still taking over what an earlier server left.
    pub(crate) fn is_starting(&self) -> bool {
        self.0.borrow().is_none()
    }

    /// The swarm, and the id of a VM that the caller's key may reach: a key that is bound to a VM reaches no other.
    /// Operations use the id from then on, because another VM may take over a name or a process id.
    ///
    /// # Errors
    /// `unknown_vm`, also where the key is bound to another VM; `invalid_value` for an ambiguous beginning of an id;
    /// `swarm_unavailable`.
    pub(crate) async fn vm_for(&self, caller: &Identity, vm: VmRef) -> Result<(Swarm, VmId), Refusal> {
        let swarm = self.swarm().await?;
        let found = match &vm {
            VmRef::Id(id) => Ok(*id),
            other => swarm.vm(&caller.account.id, other.clone()).await.map(|found| found.id),
        };
        match (found, caller.key.vm) {
            (Ok(id), None) => Ok((swarm, id)),
            (Ok(id), Some(bound)) if id == bound => Ok((swarm, id)),
            (Err(error), None) => Err(error.into()),
            // A bound key must not learn whether other VMs exist.
            (_, Some(_)) => Err(Failure::unknown_vm(vm).into()),
        }
    }

    /// Like [`Self::vm_for`], for operations that require `swarm:exec`.
    ///
    /// # Errors
    /// `scope_missing`, and those of [`Self::vm_for`].
    pub(crate) async fn vm_for_exec(&self, caller: &Identity, vm: VmRef) -> Result<(Swarm, VmId), Refusal> {
        check_scope(caller, Scope::SwarmExec)?;
        self.vm_for(caller, vm).await
    }

    /// Like [`Self::vm_for`], for requests that need the guest: a VM that an idle timeout paused is resumed.
    ///
    /// # Errors
    /// Those of [`Self::vm_for`] and [`Swarm::awake`].
    pub(crate) async fn awake_vm_for(&self, caller: &Identity, vm: VmRef) -> Result<AwakeVm, Refusal> {
        let (swarm, vm) = self.vm_for(caller, vm).await?;
        Ok(swarm.awake(&caller.account.id, &caller.account.limits, vm).await?)
    }

    /// Like [`Self::awake_vm_for`], for operations that require `swarm:exec`.
    ///
    /// # Errors
    /// `scope_missing`, and those of [`Self::awake_vm_for`].
    pub(crate) async fn awake_vm_for_exec(&self, caller: &Identity, vm: VmRef) -> Result<AwakeVm, Refusal> {
        check_scope(caller, Scope::SwarmExec)?;
        self.awake_vm_for(caller, vm).await
    }
}
