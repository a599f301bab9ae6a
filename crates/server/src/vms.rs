//! The way from HTTP to the swarm, where this start has one.

use std::sync::Arc;

use skep_api::{ErrorCode, Failure, VmRef};
use skep_swarm::Swarm;

use crate::{auth::Identity, error::Refusal};

/// The swarm, or why there is none.
#[derive(Clone)]
pub(crate) struct Vms(Arc<Result<Swarm, String>>);

impl Vms {
    /// A swarm, or the reason why this start has none.
    pub(crate) fn new(swarm: Result<Swarm, String>) -> Self {
        Self(Arc::new(swarm))
    }

    /// The swarm.
    ///
    /// # Errors
    /// `swarm_unavailable` with the reason.
    pub(crate) fn swarm(&self) -> Result<&Swarm, Failure> {
        self.0.as_ref().as_ref().map_err(|reason| {
            Failure::new(ErrorCode::SwarmUnavailable, format!("this server runs no VMs: {reason}"))
        })
    }

    /// The swarm, for a key that may reach this VM: one that is bound to a VM reaches no other.
    ///
    /// # Errors
    /// `unknown_vm` where the key is bound to another one; `swarm_unavailable`.
    pub(crate) async fn reached_by(&self, caller: &Identity, vm: VmRef) -> Result<&Swarm, Refusal> {
        let swarm = self.swarm()?;
        let Some(bound) = caller.key.vm else { return Ok(swarm) };
        let id = match vm {
            VmRef::Id(id) => id,
            VmRef::Pid(_) => swarm.vm(&caller.account.id, vm).await?.id,
        };
        if id == bound { Ok(swarm) } else { Err(Failure::unknown_vm(vm).into()) }
    }
}
