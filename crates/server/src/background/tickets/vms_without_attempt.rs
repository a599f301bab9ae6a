//! Ends the VMs whose attempt at a ticket has ended.

use std::{convert::Infallible, future::pending, time::Duration};

use skep_store::{TicketSignal, TicketStore, VmStore, VmWithoutAttempt};
use skep_swarm::Swarm;
use tokio::{sync::broadcast::error::RecvError, time::sleep};

use crate::swarm_handle::SwarmHandle;

/// Delay before a failed call of the store or the keeper is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Ends each such VM when the store reports it. At the start, and after missed notifications, it reads them from the
/// store: the server may have crashed between the end of the attempt and that of the VM.
pub(crate) async fn end_vms_without_attempt(
    tickets: &dyn TicketStore,
    store: &dyn VmStore,
    vms: SwarmHandle,
) -> Infallible {
    // Without VM support in this process there is nothing to end.
    let Ok(swarm) = vms.swarm().await else { return pending().await };
    // Subscribed before the store is read, so that no VM in between is missed.
    let mut signals = tickets.ticket_signals();
    end_all(store, &swarm).await;
    loop {
        match signals.recv().await {
            Ok(TicketSignal::VmWithoutAttempt(ended)) => end(&swarm, ended),
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => end_all(store, &swarm).await,
            Err(RecvError::Closed) => pending().await,
        }
    }
}

/// Reads which VMs are left and ends them. Retries until the store answers.
async fn end_all(store: &dyn VmStore, swarm: &Swarm) {
    loop {
        match store.vms_without_attempt().await {
            Ok(left) => return left.into_iter().for_each(|ended| end(swarm, ended)),
            Err(error) => {
                tracing::warn!(%error, "the VMs of ended attempts could not be read; retrying: {error}");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Ends one VM in a separate task, so that a slow one does not delay the others.
fn end(swarm: &Swarm, ended: VmWithoutAttempt) {
    let swarm = swarm.clone();
    tokio::spawn(async move {
        while let Err(error) = swarm.end_after_attempt(ended).await {
            tracing::warn!(vm = %ended.vm, %error, "VM {} is not ended with its attempt yet: {error}", ended.vm);
            sleep(RETRY_DELAY).await;
        }
    });
}
