//! Webhooks: events of an account that the server sends to an HTTPS endpoint, and the outcome of each delivery.

mod requests;

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    DeliveryId, WebhookId,
    scope::{UnknownWord, words},
};

pub use self::requests::{
    ChangeWebhook, CreateWebhook, DeleteWebhook, DeliveryPath, ListDeliveries, ListWebhooks, ReadWebhook,
    Redeliver, RotateWebhook, TestWebhook,
};

/// The type of a test event, which only shows that the endpoint is reachable.
pub const TEST_EVENT: &str = "webhook.test";
/// The header with the id of a message, the same in each attempt.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of an attempt, in seconds since 1970.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures of an attempt, separated by spaces.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

words! {
    /// Why a webhook is disabled.
    DisabledReason, "reason":
    /// An API request disabled it.
    Requested = "requested",
    /// The endpoint answered with status 410.
    Gone = "gone",
    /// The endpoint accepted no delivery for five days.
    Failing = "failing",
}

words! {
    /// The state of a delivery.
    DeliveryState, "state":
    /// An attempt is in progress or will follow.
    Pending = "pending",
    /// The endpoint accepted the event.
    Delivered = "delivered",
    /// No further attempt will be made.
    Failed = "failed",
}

/// The record of a webhook. It does not contain the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Webhook {
    /// The id of the webhook.
    pub id: WebhookId,
    /// The URL that events are sent to.
    #[cfg_attr(feature = "openapi", schema(example = "https://hooks.example.com/skep"))]
    pub url: String,
    /// The event types that are sent. `ticket.*` stands for all types that begin with `ticket.`.
    #[cfg_attr(feature = "openapi", schema(example = json!(["ticket.*", "vm.ended"])))]
    pub types: Vec<String>,
    /// The purpose of the webhook, for people.
    #[cfg_attr(feature = "openapi", schema(example = "notifies the dashboard"))]
    pub description: Option<String>,
    /// Whether events are sent.
    pub enabled: bool,
    /// When the webhook was disabled; null while it is enabled.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub disabled_at: Option<Timestamp>,
    /// Why the webhook is disabled; null while it is enabled.
    pub disabled_reason: Option<DisabledReason>,
    /// Until when messages are also signed with the previous secret, after a rotation; null otherwise.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub previous_secret_until: Option<Timestamp>,
    /// When the webhook was created.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
    /// When the record was last changed by a request.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub updated_at: Timestamp,
}

/// A webhook with its secret, which is returned only once.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedWebhook {
    /// The key of the signatures: `whsec_` and base64. It cannot be retrieved later.
    #[cfg_attr(feature = "openapi", schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw0000000000A="))]
    pub secret: String,
    /// The record of the webhook.
    #[serde(flatten)]
    pub record: Webhook,
}

/// A page of webhooks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookList {
    /// The webhooks, newest first.
    pub webhooks: Vec<Webhook>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The answer of `DELETE /api/webhooks/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedWebhook {
    /// The id of the deleted webhook.
    pub id: WebhookId,
    /// Always true.
    pub deleted: bool,
}

/// The delivery of one event to one webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// The id of the delivery.
    pub id: DeliveryId,
    /// The id of the event, sent as `webhook-id` with each attempt.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub event: String,
    /// The type of the event.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "ticket.completed"))]
    pub kind: String,
    /// The state of the delivery.
    pub state: DeliveryState,
    /// The latest attempts, oldest first.
    pub attempts: Vec<DeliveryAttempt>,
    /// When the next attempt is due; null unless the delivery is pending.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub next_attempt_at: Option<Timestamp>,
    /// When the delivery was created.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
}

/// An attempt to deliver an event: one HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryAttempt {
    /// When the attempt began.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The HTTP status of the response; null if there was none.
    #[cfg_attr(feature = "openapi", schema(maximum = 999, example = 200))]
    pub status: Option<u16>,
    /// The duration of the attempt, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 120))]
    pub duration_ms: u64,
    /// Why there was no response, or why the response does not count as accepted.
    pub error: Option<String>,
    /// The beginning of the response body.
    pub answer: Option<String>,
}

/// A page of deliveries.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryList {
    /// The deliveries, newest first.
    pub deliveries: Vec<Delivery>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The JSON body of a request to an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The type of the event.
    #[serde(rename = "type")]
    pub kind: String,
    /// When the change was committed.
    #[serde(with = "crate::time")]
    pub timestamp: Timestamp,
    /// The event, in the same form as in an event stream.
    pub data: serde_json::Value,
}

#[cfg(test)]
mod tests {
    use super::{ChangeWebhook, CreateWebhook, RotateWebhook};

    #[test]
    fn null_is_accepted_only_for_nullable_fields() {
        let change = serde_json::from_str::<ChangeWebhook>(r#"{"description": null}"#).unwrap();
        assert_eq!(change.description, Some(None));
        for wrong in [r#"{"url": null}"#, r#"{"types": null}"#, r#"{"enabled": null}"#, r#"{"secret": "x"}"#]
        {
            assert!(serde_json::from_str::<ChangeWebhook>(wrong).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<CreateWebhook>(r#"{"url": "x", "types": null}"#).is_err());
        assert!(serde_json::from_str::<RotateWebhook>(r#"{"overlap_ms": null}"#).is_err());
        assert_eq!(
            serde_json::from_str::<RotateWebhook>(r#"{"overlap_ms": 1.0}"#).unwrap().overlap_ms,
            Some(1)
        );
    }
}
