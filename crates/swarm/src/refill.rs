//! The background task that refills the pool. Boots have priority over it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use skep_api::TemplateId;
use tokio::time::{sleep, timeout};

use crate::{parked_vm::ParkedVm, pool::Pool};

/// How long a refill waits for boots in progress. Limited, so that the pool is refilled under constant load too.
const MAX_WAIT_FOR_BOOTS: Duration = Duration::from_secs(2);
/// How often a full pool is checked, because the shares of templates also change with time.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How often the memory of the machine is checked while it is too short for parked VMs. Nothing notifies of its change.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Back-off after a failed restore. Doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Refills the pool until the keeper is gone.
pub(crate) async fn run(pool: Arc<Pool>) {
    let mut pause = INITIAL_BACKOFF;
    while !pool.restorer.keeper.is_closed() {
        let changed = pool.changed.notified();
        pool.end_surplus().await;
        let Some((template, space)) = pool.begin_restore() else {
            let _ = timeout(check_interval(&pool), changed).await;
            continue;
        };
        let no_boots =
            async { pool.boots_in_progress.subscribe().wait_for(|boots| *boots == 0).await.map(drop) };
        let _ = timeout(MAX_WAIT_FOR_BOOTS, no_boots).await;
        let begun = Instant::now();
        let created = ParkedVm::create(&pool.restorer, template).await;
        match created {
            Ok(parked) => {
                pool.finish_restore(template, Some((parked, space)));
                pause = INITIAL_BACKOFF;
                // Refills take at most half of the time.
                sleep(begun.elapsed()).await;
            }
            // The keeper builds it again or has removed it. The other templates need not wait for that.
            Err(error) if template != TemplateId::BASE && error.is_of_template() => {
                drop(space);
                pool.finish_restore(template, None);
                pool.forget(template).await;
                tracing::info!(%template, %error, "the pool has no VMs of {template} for now: {error}");
            }
            Err(error) => {
                // Boots that wait for its capacity do not wait for the end of the back-off.
                drop(space);
                pool.finish_restore(template, None);
                tracing::warn!(%error, "the pool cannot be refilled now: {error}");
                sleep(pause).await;
                pause = (pause * 2).min(MAX_BACKOFF);
            }
        }
    }
}

/// How long the refill waits at most for a change of a pool to which it adds nothing now.
fn check_interval(pool: &Pool) -> Duration {
    if pool.budget.is_memory_short() {
        tracing::debug!("the pool is not refilled while the memory of the machine is short");
        return MEMORY_CHECK_INTERVAL;
    }
    CHECK_INTERVAL
}
