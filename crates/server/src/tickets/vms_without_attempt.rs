//! Ends the VMs whose attempt at a ticket has ended.

use std::{convert::Infallible, future::pending, time::Duration};

use skep_store::{Store, TicketNews, VmWithoutAttempt};
use skep_swarm::Swarm;
use tokio::{sync::broadcast::error::RecvError, time::sleep};

use crate::vms::Vms;

/// When a store or a keeper that was away is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Ends each such VM as soon as the store notifies of it. At the start, and after news were missed, all that are left are ended:
/// the server may have died between the end of the attempt and that of the VM.
pub(crate) async fn end_vms_without_attempt(store: &dyn Store, vms: Vms) -> Infallible {
    // Where this start has no VMs, nothing is to be done.
    let Ok(swarm) = vms.swarm().await else { return pending().await };
    // Listening begins before the store is read, so that nothing is missed between the two.
    let mut news = store.ticket_news();
    end_all(store, &swarm).await;
    loop {
        match news.recv().await {
            Ok(TicketNews::VmWithoutAttempt(ended)) => end(&swarm, ended),
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => end_all(store, &swarm).await,
            Err(RecvError::Closed) => pending().await,
        }
    }
}

/// Reads which VMs are left, until the store answers, and ends them.
async fn end_all(store: &dyn Store, swarm: &Swarm) {
    loop {
        match store.vms_without_attempt().await {
            Ok(left) => return left.into_iter().for_each(|ended| end(swarm, ended)),
            Err(error) => {
                tracing::warn!(%error, "the VMs of ended attempts were not read; tried again soon: {error}");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Ends one in a task of its own: a VM that takes long to end must not hold up the others.
fn end(swarm: &Swarm, ended: VmWithoutAttempt) {
    let swarm = swarm.clone();
    tokio::spawn(async move {
        while let Err(error) = swarm.end_after_attempt(ended).await {
            tracing::warn!(vm = %ended.vm, %error, "VM {} is not ended with its attempt yet: {error}", ended.vm);
            sleep(AGAIN).await;
        }
    });
}
