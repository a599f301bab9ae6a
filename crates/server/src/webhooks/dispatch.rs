//! Schedules attempts at deliveries, with limits by account and by webhook, so that none delays the others.

use std::{collections::HashMap, convert::Infallible, future::pending, sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_api::{AccountId, DeliveryId, WebhookId};
use skep_store::{DueWebhook, EnqueueDeliveries, ListDue, Result, Store};
use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::sleep,
};

use super::{Outgoing, WebhookOrder, flight::Hangar, sender::Sender};
use crate::metrics::Metrics;

/// Concurrent attempts: in total, of one account, of one webhook, and of one webhook whose endpoint fails.
const MOST: usize = 64;
const MOST_OF_ACCOUNT: usize = 16;
const MOST_OF_WEBHOOK: usize = 8;
const MOST_OF_FAILING: usize = 1;
/// Pending deliveries of one webhook. Further events become deliveries later; the store keeps them anyway.
const WAITING: u32 = 1_000;
/// Events and webhooks of one transaction that creates deliveries, which must not block other writers for long.
const EVENTS: u32 = 128;
const WEBHOOKS: u32 = 8;
/// Such transactions in succession before due deliveries are started.
const ROUNDS: usize = 8;
/// Delay that combines bursts of commits into one poll.
const GATHER: Duration = Duration::from_millis(20);
/// How often the store is polled without a signal: another process may have written to it.
const LOOK: Duration = Duration::from_secs(5);

/// Creates deliveries of new events, and starts attempts at those that are due.
pub(crate) struct Dispatcher {
    hangar: Arc<Hangar>,
    stopping: watch::Receiver<bool>,
}

struct Flight {
    delivery: DeliveryId,
    webhook: WebhookId,
    account: AccountId,
}

/// State that is kept between two polls.
#[derive(Default)]
struct Known {
    flights: HashMap<Id, Flight>,
    tasks: JoinSet<()>,
    /// The events up to here became deliveries of all webhooks, except those with too many pending deliveries.
    seen: u64,
    /// Some webhook has further events that can become deliveries.
    behind: bool,
    /// Some webhook has further events, but too many pending deliveries.
    full: bool,
    /// Rotates the webhook with which a poll begins.
    turn: usize,
}

impl Dispatcher {
    /// `stopping` ends the dispatcher when it becomes true.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        outgoing: &Outgoing,
        order: WebhookOrder,
        metrics: Metrics,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let WebhookOrder { lookup, pace, .. } = order;
        let Outgoing { seal, allowed } = outgoing.clone();
        let sender = Sender::new(allowed, lookup, pace.timeout);
        Self { hangar: Arc::new(Hangar { store, seal, sender, pace, metrics }), stopping }
    }

    pub(crate) async fn deliver(&self) -> Infallible {
        let mut known = Known { behind: true, ..Known::default() };
        let mut commits = self.hangar.store.commits();
        let mut stopping = self.stopping.clone();
        loop {
            // Marked as seen before the poll, so that a later commit wakes this task.
            commits.borrow_and_update();
            let wait = match self.look(&mut known).await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "due webhooks could not be read or sent; retrying: {error}");
                    LOOK
                }
            };
            let ends = tokio::select! {
                // An error means that the store is shutting down, and the server with it.
                changed = commits.changed() => changed.is_err(),
                () = known.landed() => false,
                () = sleep(wait) => false,
                _ = stopping.wait_for(|stopping| *stopping) => true,
            };
            if ends {
                // Attempts in progress may finish, but no new one begins: the next server may send already.
                return known.land_all().await;
            }
            sleep(GATHER).await;
            known.clear();
        }
    }

    /// Starts all attempts that are due. Returns how long to wait at most until the next poll.
    async fn look(&self, known: &mut Known) -> Result<Duration> {
        let store = &self.hangar.store;
        let mut webhooks = store.due_webhooks().await?;
        if webhooks.is_empty() {
            known.behind = true;
            return Ok(LOOK);
        }
        if known.behind || store.event_span().await?.newest > known.seen {
            self.enqueue(known).await?;
            webhooks = store.due_webhooks().await?;
        }
        let now = Timestamp::now();
        known.turn = known.turn.wrapping_add(1);
        let first = known.turn % webhooks.len().max(1);
        webhooks.rotate_left(first);
        let mut wait = if known.behind { Duration::ZERO } else { LOOK };
        for webhook in &webhooks {
            match webhook.next_at {
                Some(at) if at <= now => self.start(known, webhook, now).await?,
                Some(at) => wait = wait.min(Duration::try_from(at.duration_since(now)).unwrap_or_default()),
                None => {}
            }
        }
        Ok(wait)
    }

    /// Creates deliveries of new events.
    async fn enqueue(&self, known: &mut Known) -> Result<()> {
        for _ in 0..ROUNDS {
            let at = Timestamp::now();
            let command = EnqueueDeliveries { events: EVENTS, webhooks: WEBHOOKS, pending: WAITING, at };
            let done = self.hangar.store.enqueue_deliveries(command).await?;
            known.seen = done.newest;
            known.behind = done.behind && done.progress;
            known.full = done.behind && !done.progress;
            if !known.behind {
                break;
            }
        }
        Ok(())
    }

    /// Starts attempts of one webhook, as many as the limits allow.
    async fn start(&self, known: &mut Known, webhook: &DueWebhook, now: Timestamp) -> Result<()> {
        let under_way = known.flights.values().filter(|flight| flight.webhook == webhook.id).count();
        let room = known.room(webhook, under_way);
        if room == 0 {
            return Ok(());
        }
        // Attempts in progress are listed as due, too.
        let limit = u32::try_from(room + under_way).unwrap_or(u32::MAX);
        let due = self.hangar.store.due_deliveries(ListDue { webhook: webhook.id, at: now, limit }).await?;
        let new =
            due.into_iter().filter(|due| known.flights.values().all(|flight| flight.delivery != due.id));
        for delivery in new.take(room).collect::<Vec<_>>() {
            let (hangar, account, id) = (Arc::clone(&self.hangar), webhook.account, webhook.id);
            let flight = Flight { delivery: delivery.id, webhook: id, account };
            let task = known.tasks.spawn(async move { hangar.fly(account, id, delivery).await });
            known.flights.insert(task.id(), flight);
        }
        Ok(())
    }
}

impl Known {
    /// How many attempts of a webhook may start.
    fn room(&self, webhook: &DueWebhook, under_way: usize) -> usize {
        let of_account = self.flights.values().filter(|flight| flight.account == webhook.account).count();
        let most = if webhook.failing { MOST_OF_FAILING } else { MOST_OF_WEBHOOK };
        let left = |most: usize, taken: usize| most.saturating_sub(taken);
        left(most, under_way).min(left(MOST_OF_ACCOUNT, of_account)).min(left(MOST, self.flights.len()))
    }

    /// Waits until an attempt ends.
    async fn landed(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.note(ended),
            None => pending().await,
        }
    }

    /// Removes all attempts that have ended.
    fn clear(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.note(ended);
        }
    }

    fn note(&mut self, ended: std::result::Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "the task of a webhook attempt failed: {error}");
                error.id()
            }
        };
        self.flights.remove(&id);
        // There may be capacity for further deliveries now.
        self.behind |= std::mem::take(&mut self.full);
    }

    /// Waits for attempts in progress. Never returns.
    async fn land_all(&mut self) -> Infallible {
        loop {
            self.landed().await;
        }
    }
}
