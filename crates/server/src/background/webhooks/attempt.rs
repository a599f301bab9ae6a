//! Runs one attempt at a delivery, and records its result.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use skep_api::{
    AccountId, ErrorCode, WebhookId,
    webhooks::{DeliveryAttempt, Message, TEST_EVENT},
};
use skep_store::{DeliveryContent, DeliveryOutcome, DueDelivery, RecordAttempt, Store, Webhook};
use tokio::time::sleep;

use super::sender::{Reply, SendError, Sender, SignedMessage};
use crate::{
    metrics::{Metrics, WebhookOutcome},
    random,
    seal::SealingKey,
    webhooks::{
        RetryPolicy, seal_context,
        signature::{Secret, signatures},
    },
};

/// Delay before a failed write of a result is repeated. The attempt counts as in progress until then: a full store must
/// not make the server send the same delivery over and over.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// What attempts share.
pub(super) struct AttemptRunner {
    pub(super) store: Arc<dyn Store>,
    pub(super) seal: SealingKey,
    pub(super) sender: Sender,
    pub(super) retries: RetryPolicy,
    pub(super) metrics: Metrics,
}

impl AttemptRunner {
    /// Sends a delivery once, and records the result.
    pub(super) async fn run(&self, account: AccountId, webhook: WebhookId, delivery: DueDelivery) {
        let webhook = match self.store.webhook(account, webhook).await {
            Ok(webhook) if webhook.disabled.is_none() => webhook,
            // The webhook was disabled meanwhile; its deliveries stay pending.
            Ok(_) => return,
            Err(error) if error.code() == ErrorCode::UnknownWebhook => return,
            Err(error) => {
                tracing::warn!(%error, "a webhook could not be read; its delivery is retried: {error}");
                return sleep(RETRY_DELAY).await;
            }
        };
        let at = Timestamp::now();
        let reply = self.send(&webhook, &delivery, at).await;
        self.metrics.webhook_attempt(outcome(&reply));
        self.save(self.result_of(&delivery, at, reply)).await;
    }

    async fn send(&self, webhook: &Webhook, delivery: &DueDelivery, at: Timestamp) -> Reply {
        let body = match message(&delivery.content) {
            Ok(body) => body,
            Err(why) => return Reply::unsent(why),
        };
        let secrets = match self.secrets(webhook, at).await {
            Ok(secrets) => secrets,
            Err(why) => return Reply::unsent(&why),
        };
        let timestamp = at.as_second();
        let signatures = signatures(&secrets, &delivery.event, timestamp, &body);
        let message = SignedMessage { id: delivery.event.clone(), timestamp, signatures, body };
        self.sender.send(&webhook.url, message).await
    }

    /// The secrets that are valid now: the current one, and the previous one during a rotation.
    async fn secrets(&self, webhook: &Webhook, at: Timestamp) -> Result<Vec<Secret>, String> {
        let owner = seal_context(webhook.account, webhook.id);
        let previous = webhook.previous.iter().filter(|previous| previous.until > at);
        let sealed = [&webhook.secret].into_iter().chain(previous.map(|previous| &previous.secret));
        let mut secrets = Vec::with_capacity(2);
        for sealed in sealed {
            match self.seal.open(&owner, sealed).await {
                Ok(Some(secret)) => secrets.push(Secret::from_bytes(secret)),
                Ok(None) => {}
                Err(refusal) => {
                    let cause = refusal.cause().unwrap_or_default();
                    tracing::error!("the secrets of webhooks cannot be read: {cause}");
                    return Err("the server cannot read the webhook's secret now".to_owned());
                }
            }
        }
        if secrets.is_empty() {
            return Err("the webhook's secret was sealed with another key; rotate it".to_owned());
        }
        Ok(secrets)
    }

    fn result_of(&self, delivery: &DueDelivery, at: Timestamp, reply: Reply) -> RecordAttempt {
        // A 2xx status is success, even if the rest of the answer never arrives.
        let is_delivered = reply.status.is_some_and(|status| (200..300).contains(&status));
        let is_gone = reply.status == Some(410);
        let now = Timestamp::now();
        let random_bytes = random::bytes().ok().and_then(|bytes| bytes.first_chunk().copied());
        let chance = random_bytes.map_or(0, u64::from_le_bytes);
        let then = if is_delivered {
            DeliveryOutcome::Delivered
        } else if is_gone || delivery.content == DeliveryContent::EventDeleted {
            DeliveryOutcome::Failed
        } else {
            match self.retries.delay(delivery.attempts.saturating_add(1), reply.retry_after, chance) {
                Some(delay) => DeliveryOutcome::RetryAt(after(now, delay)),
                None => DeliveryOutcome::Failed,
            }
        };
        let retry_after = reply.retry_after.filter(|_| !is_delivered);
        let (error, answer) = (reply.failure.map(|trouble| trouble.to_string()), reply.answer);
        let duration_ms = u64::try_from(reply.duration.as_millis()).unwrap_or(u64::MAX);
        RecordAttempt {
            delivery: delivery.id,
            attempt: DeliveryAttempt { at, status: reply.status, duration_ms, error, answer },
            outcome: then,
            endpoint_gone: is_gone,
            hold_until: retry_after.map(|asked| after(now, self.retries.clamp_delay(asked))),
            disable_after: self.retries.disable_after,
        }
    }

    async fn save(&self, command: RecordAttempt) {
        loop {
            match self.store.record_attempt(command.clone()).await {
                Ok(None) => return,
                Ok(Some(reason)) => {
                    return tracing::warn!(delivery = %command.delivery, "a webhook was disabled: {reason}");
                }
                // The webhook was deleted meanwhile.
                Err(error) if error.code() == ErrorCode::UnknownDelivery => return,
                Err(error) => {
                    tracing::warn!(%error, "the result of a webhook attempt could not be written; retrying: {error}");
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}

impl Reply {
    /// The reply of an attempt that failed before anything was sent.
    fn unsent(why: &str) -> Self {
        Self {
            status: None,
            failure: Some(SendError::Unreachable(why.to_owned())),
            answer: None,
            retry_after: None,
            duration: Duration::ZERO,
        }
    }
}

/// The time after a delay, saturating.
fn after(now: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// The request body of a delivery.
fn message(content: &DeliveryContent) -> Result<Vec<u8>, &'static str> {
    let (kind, timestamp, data) = match content {
        DeliveryContent::Event(event) => {
            let data =
                serde_json::to_value(event.to_api()).map_err(|_| "the event cannot be written as JSON")?;
            (event.kind.as_str(), event.at, data)
        }
        DeliveryContent::Test(at, data) => (TEST_EVENT, *at, data.clone().into()),
        DeliveryContent::EventDeleted => return Err("the event is no longer kept"),
    };
    let message = Message { kind: kind.to_owned(), timestamp, data };
    serde_json::to_vec(&message).map_err(|_| "the event cannot be written as JSON")
}

fn outcome(reply: &Reply) -> WebhookOutcome {
    match (reply.status, &reply.failure) {
        (Some(200..300), _) => WebhookOutcome::Delivered,
        (Some(_), _) => WebhookOutcome::Rejected,
        (None, Some(SendError::Refused(_))) => WebhookOutcome::Refused,
        (None, Some(SendError::Timeout(_))) => WebhookOutcome::Timeout,
        (None, _) => WebhookOutcome::Unreachable,
    }
}
