//! What keeps the pool full, behind all that somebody waits for.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};

use crate::{park::Parked, pool::Pool, swarm::GUEST_MB};

/// How long a refill gives way to boots. Longer, and under steady load nothing would ever be parked.
const GIVE_WAY: Duration = Duration::from_secs(2);
/// How long a full pool goes without a look: shares change with time too.
const LOOK: Duration = Duration::from_secs(30);
/// The pause after a VM that could not be parked; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Refills until the keeper is gone.
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
                // Half of the time is left to others, however long the refill took.
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
