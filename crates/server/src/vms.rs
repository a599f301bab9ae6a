//! The way from HTTP to the swarm, where this start has one.

use skep_api::{ErrorCode, Failure, VmRef};
use skep_swarm::Swarm;
use tokio::sync::watch;

use crate::{auth::Identity, error::Refusal};

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

    /// The swarm, for a key that may reach this VM: one that is bound to a VM reaches no other.
    ///
    /// # Errors
    /// `unknown_vm` where the key is bound to another one; `swarm_unavailable`.
    pub(crate) async fn reached_by(&self, caller: &Identity, vm: VmRef) -> Result<Swarm, Refusal> {
        let swarm = self.swarm().await?;
        let Some(bound) = caller.key.vm else { return Ok(swarm) };
        let id = match vm {
            VmRef::Id(id) => id,
            VmRef::Pid(_) => swarm.vm(&caller.account.id, vm).await?.id,
        };
        if id == bound { Ok(swarm) } else { Err(Failure::unknown_vm(vm).into()) }
    }
}
