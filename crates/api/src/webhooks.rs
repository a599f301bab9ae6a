//! Webhooks: what happens in an account, sent to an endpoint of its own, and what came of it.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    DeliveryId, WebhookId,
    scope::{UnknownWord, words},
};

/// The event that says nothing but that an endpoint is reached.
pub const TEST: &str = "webhook.test";
/// The header with the id of a message, the same at each attempt.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of an attempt, in seconds since 1970.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures of an attempt, blanks between.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

words! {
    /// Why a webhook is disabled.
    DisabledReason, "reason":
    /// Somebody asked for it.
    Requested = "requested",
    /// Its endpoint answered 410.
    Gone = "gone",
    /// Its endpoint took nothing for days.
    Failing = "failing",
}

words! {
    /// Where a delivery stands.
    DeliveryState, "state":
    /// It is tried, now or later.
    Pending = "pending",
    /// The endpoint took it.
    Delivered = "delivered",
    /// It is tried no more.
    Failed = "failed",
}

/// A webhook's record. The secret is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// Where events are sent.
    #[cfg_attr(feature = "openapi", schema(example = "https://hooks.example.com/skep"))]
    pub url: String,
    /// Types and families of events that are sent.
    #[cfg_attr(feature = "openapi", schema(example = json!(["ticket.*", "vm.ended"])))]
    pub types: Vec<String>,
    /// What it is for.
    #[cfg_attr(feature = "openapi", schema(example = "tells the board"))]
    pub description: Option<String>,
    /// Whether anything is sent.
    pub enabled: bool,
    /// Since when nothing is sent.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub disabled_at: Option<Timestamp>,
    /// Why nothing is sent.
    pub disabled_reason: Option<DisabledReason>,
    /// Until when the secret before this one signs too, after a rotation.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub previous_secret_until: Option<Timestamp>,
    /// When it was made.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
    /// When somebody changed it last.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub updated_at: Timestamp,
}

/// The body of `POST /api/webhooks`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateWebhook {
    /// Where events are sent, by https; at most 2,048 characters.
    #[cfg_attr(feature = "openapi", schema(max_length = 2048, example = "https://hooks.example.com/skep"))]
    pub url: String,
    /// Types of events, such as `ticket.completed`, or all of a family: `ticket.*`. Unless given, all that the key may read.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, example = json!(["ticket.*", "vm.ended"])))]
    pub types: Option<Vec<String>>,
    /// What it is for; at most 500 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 500, example = "tells the board"))]
    pub description: Option<String>,
}

/// The body of `PATCH /api/webhooks/:id`; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeWebhook {
    /// Where events are sent from now on.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, max_length = 2048, example = "https://hooks.example.com/skep"))]
    pub url: Option<String>,
    /// In place of all types.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, example = json!(["ticket.*"])))]
    pub types: Option<Vec<String>>,
    /// What it is for; null takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 500, example = "tells the board"))]
    pub description: Option<Option<String>>,
    /// Whether anything is sent. What happens while it is false is not sent later; what waited before goes on.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = bool, example = true))]
    pub enabled: Option<bool>,
}

/// The body of `POST /api/webhooks/:id/rotate`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RotateWebhook {
    /// How long the old secret signs beside the new one, in milliseconds: at most 7 days, 24 hours unless given. 0 ends it
    /// now.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = u64, minimum = 0, maximum = 604_800_000_u64, example = 86_400_000))]
    pub overlap_ms: Option<u64>,
}

/// A webhook and its secret, which is shown this once.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedWebhook {
    /// `whsec_` and base64: the key of the signatures. It cannot be shown again.
    #[cfg_attr(feature = "openapi", schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw0000000000A="))]
    pub secret: String,
    /// Its record.
    #[serde(flatten)]
    pub record: Webhook,
}

/// A page of webhooks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookList {
    /// Newest first.
    pub webhooks: Vec<Webhook>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// The answer of `DELETE /api/webhooks/:id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedWebhook {
    /// Its id.
    pub id: WebhookId,
    /// Always true.
    pub deleted: bool,
}

/// One event for one webhook, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// The event, which is the `webhook-id` of each attempt.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub event: String,
    /// What sort of event it is.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "ticket.completed"))]
    pub kind: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// The latest attempts, oldest first.
    pub attempts: Vec<DeliveryAttempt>,
    /// When it is tried next, while it is pending.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub next_attempt_at: Option<Timestamp>,
    /// When the event came up for it.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
}

/// One request to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryAttempt {
    /// When it began.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The status of the answer; null where there was none.
    #[cfg_attr(feature = "openapi", schema(example = 200))]
    pub status: Option<u16>,
    /// How long it took, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 120))]
    pub duration_ms: u64,
    /// Why there was no answer, or why it counts as none.
    pub error: Option<String>,
    /// How the answer's body begins.
    pub answer: Option<String>,
}

/// A page of deliveries.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryList {
    /// Newest first.
    pub deliveries: Vec<Delivery>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// What an endpoint is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// What sort of event it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it happened.
    #[serde(with = "crate::time")]
    pub timestamp: Timestamp,
    /// The event, as a stream of events tells it.
    pub data: serde_json::Value,
}

#[cfg(test)]
mod tests {
    use super::{ChangeWebhook, CreateWebhook, RotateWebhook};

    #[test]
    fn null_is_taken_where_it_means_something() {
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
