//! The background task that refills the pool. Boots have priority over it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};

use crate::{park::Parked, pool::Pool, swarm::GUEST_MB};

/// How long a refill waits for boots in progress. Limited, so that the pool is refilled under constant load too.
const GIVE_WAY: Duration = Duration::from_secs(2);
/// How often a full pool is checked, because the shares of templates also change with time.
const LOOK: Duration = Duration::from_secs(30);
/// Back-off after a failed restore. Doubles up to `MAX_BACKOFF`.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Refills the pool until the keeper is gone.
pub(crate) async fn keep_full(pool: Arc<Pool>) {
    let mut pause = FIRST_PAUSE;
    while !pool.restorer.keeper.is_closed() {
        let changed = pool.changed.notified();
        let Some(space) = pool.budget.parking_space(GUEST_MB) else {
            let _ = timeout(LOOK, changed).await;
            continue;
        };
        let Some(template) = pool.next_wanted() else {
            drop(space);
            let _ = timeout(LOOK, changed).await;
            continue;
        };
        let quiet = async { pool.boots.subscribe().wait_for(|boots| *boots == 0).await.map(drop) };
        let _ = timeout(GIVE_WAY, quiet).await;
        let begun = Instant::now();
        match Parked::make(&pool.restorer, &template).await {
            Ok(parked) => {
                pool.arrived(&template, Some((parked, space)));
                pause = FIRST_PAUSE;
                // Refills take at most half of the time.
                sleep(begun.elapsed()).await;
            }
            Err(error) => {
                pool.arrived(&template, None);
                tracing::warn!(%error, "the pool cannot be refilled now: {error}");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
