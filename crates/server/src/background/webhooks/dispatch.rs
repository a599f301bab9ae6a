//! Schedules attempts at deliveries, with limits by account and by webhook, so that none delays the others.

use std::{collections::HashMap, convert::Infallible, future::pending, sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_api::{AccountId, DeliveryId, WebhookId};
use skep_store::{DueWebhook, EnqueueDeliveries, EventScope, ListDue, Result, Store};
use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::sleep,
};

use super::{attempt::AttemptRunner, sender::Sender};
use crate::{
    metrics::Metrics,
    webhooks::{WebhookContext, WebhookSettings},
};

/// Concurrent attempts: in total, of one account, of one webhook, and of one webhook whose endpoint fails.
const MAX_CONCURRENT: usize = 64;
const MAX_PER_ACCOUNT: usize = 16;
const MAX_PER_WEBHOOK: usize = 8;
const MAX_PER_FAILING_WEBHOOK: usize = 1;
/// Pending deliveries of one webhook. Further events become deliveries later; the store keeps them anyway.
const MAX_PENDING: u32 = 1_000;
/// Events and webhooks of one transaction that creates deliveries, which must not block other writers for long.
const ENQUEUE_EVENTS: u32 = 128;
const ENQUEUE_WEBHOOKS: u32 = 8;
/// Such transactions in succession before due deliveries are started.
const MAX_ENQUEUES: usize = 8;
/// Delay that combines bursts of commits into one poll.
const COMMIT_DELAY: Duration = Duration::from_millis(20);
/// How often the store is polled without a signal: another process may have written to it.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Creates deliveries of new events, and starts attempts at those that are due.
pub(crate) struct Dispatcher {
    runner: Arc<AttemptRunner>,
    stopping: watch::Receiver<bool>,
}

struct RunningAttempt {
    delivery: DeliveryId,
    webhook: WebhookId,
    account: AccountId,
}

/// State that is kept between two polls.
#[derive(Default)]
struct DispatchState {
    running: HashMap<Id, RunningAttempt>,
    tasks: JoinSet<()>,
    /// The events up to here became deliveries of all webhooks, except those with too many pending deliveries.
    enqueued_up_to: u64,
    /// Some webhook has further events that can become deliveries.
    behind: bool,
    /// Some webhook has further events, but too many pending deliveries.
    blocked: bool,
    /// Rotates the webhook with which a poll begins.
    rotation: usize,
}

impl Dispatcher {
    /// `stopping` ends the dispatcher when it becomes true.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        outgoing: &WebhookContext,
        settings: WebhookSettings,
        metrics: Metrics,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let WebhookSettings { lookup, retries, .. } = settings;
        let WebhookContext { seal, rules } = outgoing.clone();
        let sender = Sender::new(rules, lookup, retries.timeout);
        Self { runner: Arc::new(AttemptRunner { store, seal, sender, retries, metrics }), stopping }
    }

    pub(crate) async fn run(&self) -> Infallible {
        let mut state = DispatchState { behind: true, ..DispatchState::default() };
        let mut commits = self.runner.store.commits();
        let mut stopping = self.stopping.clone();
        loop {
            // Marked as seen before the poll, so that a later commit wakes this task.
            commits.borrow_and_update();
            let wait = match self.poll(&mut state).await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "due webhooks could not be read or sent; retrying: {error}");
                    POLL_INTERVAL
                }
            };
            let is_stopping = tokio::select! {
                // An error means that the store is shutting down, and the server with it.
                changed = commits.changed() => changed.is_err(),
                () = state.attempt_ended() => false,
                () = sleep(wait) => false,
                _ = stopping.wait_for(|stopping| *stopping) => true,
            };
            if is_stopping {
                // Attempts in progress may finish, but no new one begins: the next server may send already.
                return state.drain().await;
            }
            sleep(COMMIT_DELAY).await;
            state.remove_ended();
        }
    }

    /// Starts all attempts that are due. Returns how long to wait at most until the next poll.
    async fn poll(&self, known: &mut DispatchState) -> Result<Duration> {
        let store = &self.runner.store;
        let mut webhooks = store.due_webhooks().await?;
        if webhooks.is_empty() {
            known.behind = true;
            return Ok(POLL_INTERVAL);
        }
        if known.behind || store.event_span(EventScope::All).await?.newest > known.enqueued_up_to {
            self.enqueue(known).await?;
            webhooks = store.due_webhooks().await?;
        }
        let now = Timestamp::now();
        known.rotation = known.rotation.wrapping_add(1);
        let first = known.rotation % webhooks.len().max(1);
        webhooks.rotate_left(first);
        let mut wait = if known.behind { Duration::ZERO } else { POLL_INTERVAL };
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
    async fn enqueue(&self, state: &mut DispatchState) -> Result<()> {
        for _ in 0..MAX_ENQUEUES {
            let at = Timestamp::now();
            let command = EnqueueDeliveries {
                events: ENQUEUE_EVENTS,
                webhooks: ENQUEUE_WEBHOOKS,
                max_pending: MAX_PENDING,
                at,
            };
            let done = self.runner.store.enqueue_deliveries(command).await?;
            state.enqueued_up_to = done.newest;
            state.behind = done.behind && done.advanced;
            state.blocked = done.behind && !done.advanced;
            if !state.behind {
                break;
            }
        }
        Ok(())
    }

    /// Starts attempts of one webhook, as many as the limits allow.
    async fn start(&self, state: &mut DispatchState, webhook: &DueWebhook, now: Timestamp) -> Result<()> {
        let in_progress = state.running.values().filter(|flight| flight.webhook == webhook.id).count();
        let available = state.available(webhook, in_progress);
        if available == 0 {
            return Ok(());
        }
        // Attempts in progress are listed as due, too.
        let limit = u32::try_from(available + in_progress).unwrap_or(u32::MAX);
        let due = self.runner.store.due_deliveries(ListDue { webhook: webhook.id, at: now, limit }).await?;
        let new =
            due.into_iter().filter(|due| state.running.values().all(|flight| flight.delivery != due.id));
        for delivery in new.take(available).collect::<Vec<_>>() {
            let (runner, account, id) = (Arc::clone(&self.runner), webhook.account, webhook.id);
            let attempt = RunningAttempt { delivery: delivery.id, webhook: id, account };
            let task = state.tasks.spawn(async move { runner.run(account, id, delivery).await });
            state.running.insert(task.id(), attempt);
        }
        Ok(())
    }
}

impl DispatchState {
    /// How many attempts of a webhook may start.
    fn available(&self, webhook: &DueWebhook, under_way: usize) -> usize {
        let of_account = self.running.values().filter(|flight| flight.account == webhook.account).count();
        let webhook_limit = if webhook.failing { MAX_PER_FAILING_WEBHOOK } else { MAX_PER_WEBHOOK };
        let left = |most: usize, taken: usize| most.saturating_sub(taken);
        left(webhook_limit, under_way)
            .min(left(MAX_PER_ACCOUNT, of_account))
            .min(left(MAX_CONCURRENT, self.running.len()))
    }

    /// Waits until an attempt ends.
    async fn attempt_ended(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.remove(ended),
            None => pending().await,
        }
    }

    /// Removes all attempts that have ended.
    fn remove_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.remove(ended);
        }
    }

    fn remove(&mut self, ended: std::result::Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "the task of a webhook attempt failed: {error}");
                error.id()
            }
        };
        self.running.remove(&id);
        // There may be capacity for further deliveries now.
        self.behind |= std::mem::take(&mut self.blocked);
    }

    /// Waits for attempts in progress. Never returns.
    async fn drain(&mut self) -> Infallible {
        loop {
            self.attempt_ended().await;
        }
    }
}
