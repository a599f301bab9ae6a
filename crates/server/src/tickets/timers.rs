//! The task that ends attempts whose lease or run time is over, and wakes tickets whose `not_before` has passed.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::future::join_all;
use skep_store::{EndAttempt, Store, TicketNews, TimeUp, WakeTicket};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{sleep, sleep_until},
};

use super::clock::{Clock, Due, Now};

/// How often the wall clock is checked for a step while a deadline follows it.
const GLANCE: Duration = Duration::from_secs(1);
/// Delay before a failed call of the store is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// Commands that run concurrently, so that they share a commit of the store.
const TOGETHER: usize = 128;

/// Runs the timers of all tickets, until it is dropped. Attempts that are open at the start get their full lease again:
/// no attempt ends because the server was down.
pub(crate) async fn keep_time(store: Arc<dyn Store>) -> Infallible {
    // Subscribed before the store is read, so that no change in between is missed.
    let mut news = store.ticket_news();
    let mut clock = Clock::default();
    // Written before the timers start: the lease end that callers read must not be later than that of the timer.
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

/// Applies changes to the deadlines until one of them may have expired.
async fn next_news(store: &dyn Store, news: &mut Receiver<TicketNews>, clock: &mut Clock) {
    let far =
        Now::read().instant + if clock.follows_the_wall() { GLANCE } else { Duration::from_secs(3_600) };
    let next = clock.next().map_or(far, |next| next.min(far));
    tokio::select! {
        told = news.recv() => note(store, told, clock).await,
        () = sleep_until(next.into()) => return,
    }
    // A burst of changes is applied at once.
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
        // The store is shutting down, and the server with it.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

/// Writes the new ends of open leases. Retries until it succeeds.
async fn restart_leases(store: &dyn Store) {
    while let Err(error) = store.restart_leases(Now::read().wall).await {
        tracing::warn!(%error, "the new lease ends could not be written; retrying: {error}");
        sleep(AGAIN).await;
    }
}

/// Reads open attempts and waiting tickets. Retries until it succeeds.
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
                tracing::warn!(%error, "the deadlines of tickets could not be read; retrying: {error}");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Applies an expired deadline to the store. Retries until it succeeds, so that a full disk strands no ticket.
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
