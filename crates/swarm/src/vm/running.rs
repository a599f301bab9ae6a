//! A VM whose processors run.

use std::sync::Arc;

use skep_api::swarm::PausedBy;
use skep_channel::Guest;
use skep_engine::Machine;

use super::{Paused, Unchanged};

pub(crate) struct Running {
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) guest: Guest,
}

impl Running {
    /// Stops the processors. Calls in progress stand still with them.
    ///
    /// # Errors
    /// The VMM did not answer or refused.
    pub(crate) async fn pause(self, by: PausedBy) -> Result<Paused, Unchanged<Self>> {
        if let Err(error) = self.machine.pause().await {
            // The VMM may have stopped them all the same, if its answer was late.
            if let Err(error) = self.machine.resume().await {
                tracing::warn!(%error, "a VM that was not paused may stand still: {error}");
            }
            return Err((self, error.into()));
        }
        Ok(Paused::connected(self.machine, self.guest, by))
    }
}
