//! Webhooks and their deliveries: commands, records and pages.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};
use skep_api::{
    AccountId, DeliveryId, WebhookId,
    webhooks::{Delivery, DeliveryAttempt, DisabledReason},
};

use crate::Event;

/// A webhook as it is kept. Its secrets are sealed: the store cannot read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// Whose it is.
    pub account: AccountId,
    /// Where events are sent.
    pub url: String,
    /// Types and families of events.
    pub types: Vec<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The key of its signatures, sealed.
    pub secret: Vec<u8>,
    /// The one before it.
    pub previous: Option<PreviousSecret>,
    /// Whether, and why, nothing is sent.
    pub disabled: Option<Disabled>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When somebody changed it last.
    pub updated_at: Timestamp,
}

/// A secret that another one took the place of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviousSecret {
    /// Sealed.
    pub secret: Vec<u8>,
    /// Until when it signs too.
    pub until: Timestamp,
}

/// Nothing is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disabled {
    /// Since when.
    pub at: Timestamp,
    /// Why.
    pub reason: DisabledReason,
}

/// Makes a webhook, which is sent what happens from now on.
#[derive(Debug, Clone)]
pub struct CreateWebhook {
    /// Its id: its secret is sealed for it.
    pub id: WebhookId,
    /// Whose it is.
    pub account: AccountId,
    /// Where events are sent.
    pub url: String,
    /// Types and families of events.
    pub types: Vec<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The key of its signatures, sealed.
    pub secret: Vec<u8>,
    /// The most webhooks that the account may have.
    pub most: u32,
    /// Now.
    pub at: Timestamp,
}

/// Changes a webhook; what is `None` stays.
#[derive(Debug, Clone)]
pub struct ChangeWebhook {
    /// Whose it is.
    pub account: AccountId,
    /// Which.
    pub id: WebhookId,
    /// Where events are sent.
    pub url: Option<String>,
    /// Types and families of events.
    pub types: Option<Vec<String>>,
    /// What it is for.
    pub description: Option<Option<String>>,
    /// Whether anything is sent. One that is enabled again begins with what happens from now on.
    pub enabled: Option<bool>,
    /// Now.
    pub at: Timestamp,
}

/// Gives a webhook another secret.
#[derive(Debug, Clone)]
pub struct RotateWebhook {
    /// Whose it is.
    pub account: AccountId,
    /// Which.
    pub id: WebhookId,
    /// The new secret, sealed.
    pub secret: Vec<u8>,
    /// Until when the old one signs too; `None` ends it now.
    pub previous_until: Option<Timestamp>,
    /// Now.
    pub at: Timestamp,
}

/// Deletes a webhook. Its deliveries go later, a few at a time.
#[derive(Debug, Clone, Copy)]
pub struct DeleteWebhook {
    /// Whose it is.
    pub account: AccountId,
    /// Which.
    pub id: WebhookId,
    /// Now.
    pub at: Timestamp,
}

/// Asks for a page of an account's webhooks, newest first.
#[derive(Debug, Clone, Copy)]
pub struct ListWebhooks {
    /// Whose.
    pub account: AccountId,
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended: only older ones than this.
    pub before: Option<WebhookId>,
}

/// A page of webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookPage {
    /// Newest first.
    pub webhooks: Vec<Webhook>,
    /// The next page's `before`; `None` at the end.
    pub next: Option<WebhookId>,
}

/// Asks for a page of a webhook's deliveries, newest first.
#[derive(Debug, Clone, Copy)]
pub struct ListDeliveries {
    /// Whose webhook it is.
    pub account: AccountId,
    /// Which.
    pub webhook: WebhookId,
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended: only older ones than this.
    pub before: Option<DeliveryId>,
}

/// A page of deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryPage {
    /// Newest first.
    pub deliveries: Vec<Delivery>,
    /// The next page's `before`; `None` at the end.
    pub next: Option<DeliveryId>,
}

/// Has a delivery tried again from the beginning, whatever came of it.
#[derive(Debug, Clone, Copy)]
pub struct Redeliver {
    /// Whose webhook it is.
    pub account: AccountId,
    /// Which.
    pub webhook: WebhookId,
    /// Which of its deliveries.
    pub delivery: DeliveryId,
    /// Now.
    pub at: Timestamp,
}

/// Has something sent that is no event of the account.
#[derive(Debug, Clone)]
pub struct TestWebhook {
    /// Whose webhook it is.
    pub account: AccountId,
    /// Which.
    pub webhook: WebhookId,
    /// The delivery, whose id is the event's id too.
    pub delivery: DeliveryId,
    /// What is told.
    pub data: Map<String, Value>,
    /// Now.
    pub at: Timestamp,
}

/// Makes deliveries of events that enabled webhooks have not seen: some at a time.
#[derive(Debug, Clone, Copy)]
pub struct EnqueueDeliveries {
    /// Events of one webhook that are looked at; at least 1.
    pub events: u32,
    /// Webhooks that are looked at; at least 1.
    pub webhooks: u32,
    /// Deliveries that wait, of one webhook: what is more waits as events do.
    pub pending: u32,
    /// Now.
    pub at: Timestamp,
}

/// How far the deliveries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// The newest event that there was.
    pub newest: u64,
    /// Whether this went on at all.
    pub progress: bool,
    /// Whether an enabled webhook has not seen all.
    pub behind: bool,
}

/// A webhook that is enabled, and when its next delivery is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueWebhook {
    /// Which.
    pub id: WebhookId,
    /// Whose it is.
    pub account: AccountId,
    /// Whether its last attempt failed.
    pub failing: bool,
    /// When; `None` where nothing waits.
    pub next_at: Option<Timestamp>,
}

/// Asks for the deliveries of a webhook whose time has come, in that order.
#[derive(Debug, Clone, Copy)]
pub struct ListDue {
    /// Which webhook.
    pub webhook: WebhookId,
    /// Now.
    pub at: Timestamp,
    /// At most so many.
    pub limit: u32,
}

/// A delivery whose time has come.
#[derive(Debug, Clone, PartialEq)]
pub struct DueDelivery {
    /// Which.
    pub id: DeliveryId,
    /// The event's id.
    pub event: String,
    /// Attempts since it was asked for.
    pub tries: u32,
    /// What is told.
    pub content: DeliveryContent,
}

/// What a delivery tells.
#[derive(Debug, Clone, PartialEq)]
pub enum DeliveryContent {
    /// An event.
    Event(Box<Event>),
    /// A test, made at this time.
    Test(Timestamp, Map<String, Value>),
    /// An event that is kept no longer.
    Gone,
}

/// Notes an attempt, and what follows from it.
#[derive(Debug, Clone)]
pub struct RecordAttempt {
    /// Of which delivery.
    pub delivery: DeliveryId,
    /// What came of it.
    pub attempt: DeliveryAttempt,
    /// What becomes of the delivery.
    pub then: AfterAttempt,
    /// The endpoint is gone: disables the webhook.
    pub gone: bool,
    /// The endpoint asks to be left alone until then.
    pub hold_until: Option<Timestamp>,
    /// A webhook whose endpoint took nothing for so long is disabled.
    pub patience: SignedDuration,
}

/// What becomes of a delivery after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterAttempt {
    /// The endpoint took it.
    Delivered,
    /// It is tried again then.
    Again(Timestamp),
    /// It is tried no more.
    Failed,
}
