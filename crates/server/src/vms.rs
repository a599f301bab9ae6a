//! The way from HTTP to the swarm, where this start has one.

use skep_api::{ErrorCode, Failure, Scope, VmId, VmRef};
use skep_swarm::Swarm;
use tokio::sync::watch;

use crate::{auth::Identity, error::Refusal, extract::check_scope};

/// The swarm, once there is one, or why there is none. A server that takes another's place has its swarm when that one is
/// gone, and serves before.
pub type SwarmToCome = watch::Receiver<Option<Result<Swarm, String>>>;

/// A swarm that is there, or will never be.
pub fn swarm_at_hand(swarm: Result<Swarm, String>) -> SwarmToCome {
    watch::Sender::new(Some(swarm)).subscribe()
}

/// The swarm, or why there is none.
#[derive(Clone)]
pub(crate) struct Vms(SwarmToCome);

impl Vms {
    /// A swarm, or the reason why this start has none.
    pub(crate) fn new(swarm: SwarmToCome) -> Self {
        Self(swarm)
    }

    /// The swarm. Waits for one that is to come.
    ///
    /// # Errors
    /// `swarm_unavailable` with the reason.
    pub(crate) async fn swarm(&self) -> Result<Swarm, Failure> {
        // Where whoever would tell is gone, the last word counts.
        let _ = self.0.clone().wait_for(Option::is_some).await;
        self.swarm_now()
    }

    /// The same without waiting.
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

    /// The swarm, and the id of a VM that this key may reach: one that is bound to a VM reaches no other. What is done then is
    /// done by the id, which no other VM takes over meanwhile as it may a name or a process id.
    ///
    /// # Errors
    /// `unknown_vm`, also where the key is bound to another one; `invalid_value` for the beginning of several ids;
    /// `swarm_unavailable`.
    pub(crate) async fn reached_by(&self, caller: &Identity, vm: VmRef) -> Result<(Swarm, VmId), Refusal> {
        let swarm = self.swarm().await?;
        let found = match &vm {
            VmRef::Id(id) => Ok(*id),
            other => swarm.vm(&caller.account.id, other.clone()).await.map(|found| found.id),
        };
        match (found, caller.key.vm) {
            (Ok(id), None) => Ok((swarm, id)),
            (Ok(id), Some(bound)) if id == bound => Ok((swarm, id)),
            (Err(error), None) => Err(error.into()),
            // Such a key learns nothing of other VMs.
            (_, Some(_)) => Err(Failure::unknown_vm(vm).into()),
        }
    }

    /// The same for what needs `swarm:exec`.
    ///
    /// # Errors
    /// `scope_missing`, and those of [`Self::reached_by`].
    pub(crate) async fn entered_by(&self, caller: &Identity, vm: VmRef) -> Result<(Swarm, VmId), Refusal> {
        check_scope(caller, Scope::SwarmExec)?;
        self.reached_by(caller, vm).await
    }
}
