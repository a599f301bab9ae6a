//! Which deliveries are tried when: enough at once, and never so many of one that others wait for it.

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

/// Attempts at the same time: of all, of one account, of one webhook, and of one whose endpoint fails.
const MOST: usize = 64;
const MOST_OF_ACCOUNT: usize = 16;
const MOST_OF_WEBHOOK: usize = 8;
const MOST_OF_FAILING: usize = 1;
/// Deliveries of one webhook that wait. What is more waits as events do, which are kept anyway.
const WAITING: u32 = 1_000;
/// What becomes deliveries in one transaction: the store must not be held up.
const EVENTS: u32 = 128;
const WEBHOOKS: u32 = 8;
/// Such transactions one after the other, before what is due is looked at.
const ROUNDS: usize = 8;
/// Commits come in floods: what gathers in this time is looked at together.
const GATHER: Duration = Duration::from_millis(20);
/// How often the store is looked at although it told of nothing: another process may have written.
const LOOK: Duration = Duration::from_secs(5);

/// Has deliveries made, and tries those that are due.
pub(crate) struct Dispatcher {
    hangar: Arc<Hangar>,
    stopping: watch::Receiver<bool>,
}

/// An attempt under way.
struct Flight {
    delivery: DeliveryId,
    webhook: WebhookId,
    account: AccountId,
}

/// What is known between two looks.
#[derive(Default)]
struct Known {
    flights: HashMap<Id, Flight>,
    tasks: JoinSet<()>,
    /// All webhooks have seen the events up to here, but those that have too many deliveries waiting.
    seen: u64,
    /// Some webhook has not, and can.
    behind: bool,
    /// Some webhook has not, and cannot until one of its deliveries ends.
    full: bool,
    /// With whom the next look begins.
    turn: usize,
}

impl Dispatcher {
    /// Sends in this way, until `stopping` is true.
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

    /// Does it, for ever.
    pub(crate) async fn deliver(&self) -> Infallible {
        let mut known = Known { behind: true, ..Known::default() };
        let mut commits = self.hangar.store.commits();
        let mut stopping = self.stopping.clone();
        loop {
            // Before the look: what comes after it is told.
            commits.borrow_and_update();
            let wait = match self.look(&mut known).await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "webhooks were not looked after; tried again soon: {error}");
                    LOOK
                }
            };
            let ends = tokio::select! {
                // Its failure: the store is going away, and the server with it.
                changed = commits.changed() => changed.is_err(),
                () = known.landed() => false,
                () = sleep(wait) => false,
                _ = stopping.wait_for(|stopping| *stopping) => true,
            };
            if ends {
                // What is under way may end; nothing begins any more. Another server may send already.
                return known.land_all().await;
            }
            sleep(GATHER).await;
            known.clear();
        }
    }

    /// Looks once at all that there is to do, and says when to look again at the latest.
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

    /// Makes deliveries of what webhooks have not seen.
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

    /// Begins attempts of one webhook, as many as there is room for.
    async fn start(&self, known: &mut Known, webhook: &DueWebhook, now: Timestamp) -> Result<()> {
        let under_way = known.flights.values().filter(|flight| flight.webhook == webhook.id).count();
        let room = known.room(webhook, under_way);
        if room == 0 {
            return Ok(());
        }
        // Those under way are due still.
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
    /// How many attempts of a webhook may begin.
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

    /// Forgets all attempts that have ended.
    fn clear(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.note(ended);
        }
    }

    fn note(&mut self, ended: std::result::Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "an attempt of a webhook broke: {error}");
                error.id()
            }
        };
        self.flights.remove(&id);
        // There may be room for what could not become a delivery.
        self.behind |= std::mem::take(&mut self.full);
    }

    /// Waits for what is under way, and then for ever.
    async fn land_all(&mut self) -> Infallible {
        loop {
            self.landed().await;
        }
    }
}
