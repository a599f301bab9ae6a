//! The one task that ends attempts whose time is up and wakes tickets whose time has come.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::future::join_all;
use skep_store::{EndAttempt, Store, TicketNews, TimeUp, WakeTicket};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{sleep, sleep_until},
};

use super::clock::{Clock, Due, Now};

/// How often the clock on the wall is looked at, where it matters.
const GLANCE: Duration = Duration::from_secs(1);
/// When a store that was away is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// Commands at once: they share a commit.
const TOGETHER: usize = 128;

/// Keeps the times of all tickets, for ever. What is open at the start has its full time from then on: an outage of the
/// server ends nothing.
pub(crate) async fn keep_time(store: Arc<dyn Store>) -> Infallible {
    // Listening begins before the store is read: what changes between the two is told.
    let mut news = store.ticket_news();
    let mut clock = Clock::default();
    // Before the leases are timed: what callers read never promises more than the timer gives.
    restart_leases(&*store).await;
    read_all(&*store, &mut clock).await;
    loop {
        let due = clock.due(Now::read());
        for together in due.chunks(TOGETHER) {
            join_all(together.iter().map(|due| act(&*store, *due))).await;
        }
        next_news(&*store, &mut news, &mut clock).await;
        clock.look_at_the_wall(Now::read());
    }
}

/// Notes what is told, until somebody's time may be up.
async fn next_news(store: &dyn Store, news: &mut Receiver<TicketNews>, clock: &mut Clock) {
    let far =
        Now::read().instant + if clock.follows_the_wall() { GLANCE } else { Duration::from_secs(3_600) };
    let next = clock.next().map_or(far, |next| next.min(far));
    tokio::select! {
        told = news.recv() => note(store, told, clock).await,
        () = sleep_until(next.into()) => return,
    }
    // All that is there already: a burst is noted at once.
    while let Ok(told) = news.try_recv() {
        note(store, Ok(told), clock).await;
    }
}

async fn note(store: &dyn Store, told: Result<TicketNews, RecvError>, clock: &mut Clock) {
    match told {
        Ok(TicketNews::Held(open)) => clock.hold(open, Now::read()),
        Ok(TicketNews::Free(ticket)) => clock.free(ticket),
        Ok(TicketNews::Waiting(waiting)) => clock.wait(waiting, Now::read()),
        Ok(TicketNews::Ready(_) | TicketNews::VmWithoutAttempt(_)) => {}
        Err(RecvError::Lagged(_)) => read_all(store, clock).await,
        // The store is going away, and the server with it.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

/// Writes the new ends of open leases, until the store answers.
async fn restart_leases(store: &dyn Store) {
    while let Err(error) = store.restart_leases(Now::read().wall).await {
        tracing::warn!(%error, "the new ends of leases were not written; tried again soon: {error}");
        sleep(AGAIN).await;
    }
}

/// Reads what is open, until the store answers.
async fn read_all(store: &dyn Store, clock: &mut Clock) {
    loop {
        match (store.open_attempts().await, store.waiting_tickets().await) {
            (Ok(open), Ok(waiting)) => {
                let now = Now::read();
                open.into_iter().for_each(|open| clock.hold_unless_known(open, now));
                waiting.into_iter().for_each(|waiting| clock.wait_unless_known(waiting, now));
                return;
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "the times of tickets were not read; tried again soon: {error}");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Has the store do what a time that is up demands, until it answers: nothing is stranded because a disk was full.
async fn act(store: &dyn Store, due: Due) {
    loop {
        let done = match due {
            Due::Attempt(ticket, attempt, why) => {
                let at = Now::read().wall;
                let ended = store.end_attempt(EndAttempt { ticket, attempt, why, at }).await;
                if let Ok(true) = ended {
                    let reason = if why == TimeUp::Runtime { "max_runtime_ms" } else { "its lease" };
                    tracing::info!(%ticket, attempt, "attempt {attempt} at {ticket} ended by {reason}");
                }
                ended
            }
            Due::Waiting(ticket, not_before) => {
                store.wake_ticket(WakeTicket { ticket, not_before, at: Now::read().wall }).await
            }
        };
        match done {
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%error, "a ticket's time is up and was not written; tried again soon: {error}");
                sleep(AGAIN).await;
            }
        }
    }
}
