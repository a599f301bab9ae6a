//! The task that ends attempts whose lease or run time is over, and wakes tickets whose `not_before` has passed.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::future::join_all;
use skep_store::{AttemptTimer, EndAttempt, TicketSignal, TicketStore, WakeTicket};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{sleep, sleep_until},
};

use super::deadlines::{Deadlines, Due, Now};

/// How often the wall clock is checked for a step while a deadline follows it.
const WALL_CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a failed call of the store is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Commands that run concurrently, so that they share a commit of the store.
const MAX_CONCURRENT: usize = 128;

/// Runs the timers of all tickets, until it is dropped. Attempts that are open at the start get their full lease again:
/// no attempt ends because the server was down.
pub(crate) async fn run_timers(store: Arc<dyn TicketStore>) -> Infallible {
    // Subscribed before the store is read, so that no change in between is missed.
    let mut signals = store.ticket_signals();
    let mut deadlines = Deadlines::default();
    // Written before the timers start: the lease end that callers read must not be later than that of the timer.
    restart_leases(&*store).await;
    read_all(&*store, &mut deadlines).await;
    loop {
        let due = deadlines.due(Now::read());
        for chunk in due.chunks(MAX_CONCURRENT) {
            join_all(chunk.iter().map(|due| expire(&*store, *due))).await;
        }
        apply_changes(&*store, &mut signals, &mut deadlines).await;
        deadlines.adjust_to_wall_clock(Now::read());
    }
}

/// Applies changes to the deadlines until one of them may have expired.
async fn apply_changes(
    store: &dyn TicketStore,
    signals: &mut Receiver<TicketSignal>,
    deadlines: &mut Deadlines,
) {
    let far = Now::read().instant
        + if deadlines.uses_wall_clock() { WALL_CLOCK_INTERVAL } else { Duration::from_secs(3_600) };
    let next = deadlines.next().map_or(far, |next| next.min(far));
    tokio::select! {
        change = signals.recv() => apply_change(store, change, deadlines).await,
        () = sleep_until(next.into()) => return,
    }
    // A burst of changes is applied at once.
    while let Ok(change) = signals.try_recv() {
        apply_change(store, Ok(change), deadlines).await;
    }
}

async fn apply_change(
    store: &dyn TicketStore,
    change: Result<TicketSignal, RecvError>,
    deadlines: &mut Deadlines,
) {
    match change {
        Ok(TicketSignal::Held(open)) => deadlines.set_attempt(open, Now::read()),
        Ok(TicketSignal::NotHeld(ticket)) => deadlines.remove_attempt(ticket),
        Ok(TicketSignal::Waiting(waiting)) => deadlines.set_waiting(waiting, Now::read()),
        Ok(TicketSignal::Ready(_) | TicketSignal::VmWithoutAttempt(_)) => {}
        Err(RecvError::Lagged(_)) => read_all(store, deadlines).await,
        // The store is shutting down, and the server with it.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

/// Writes the new ends of open leases. Retries until it succeeds.
async fn restart_leases(store: &dyn TicketStore) {
    while let Err(error) = store.restart_leases(Now::read().wall).await {
        tracing::warn!(%error, "the new lease ends could not be written; retrying: {error}");
        sleep(RETRY_DELAY).await;
    }
}

/// Reads open attempts and waiting tickets. Retries until it succeeds.
async fn read_all(store: &dyn TicketStore, deadlines: &mut Deadlines) {
    loop {
        match (store.open_attempts().await, store.waiting_tickets().await) {
            (Ok(open), Ok(waiting)) => {
                let now = Now::read();
                open.into_iter().for_each(|open| deadlines.add_attempt(open, now));
                waiting.into_iter().for_each(|waiting| deadlines.add_waiting(waiting, now));
                return;
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "the deadlines of tickets could not be read; retrying: {error}");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Applies an expired deadline to the store. Retries until it succeeds, so that a full disk strands no ticket.
async fn expire(store: &dyn TicketStore, due: Due) {
    loop {
        let done = match due {
            Due::Attempt(ticket, attempt, why) => {
                let at = Now::read().wall;
                let ended = store.end_attempt(EndAttempt { ticket, attempt, timer: why, at }).await;
                if let Ok(true) = ended {
                    let reason = if why == AttemptTimer::Runtime { "max_runtime_ms" } else { "its lease" };
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
                sleep(RETRY_DELAY).await;
            }
        }
    }
}
