//! The operations on webhooks and their deliveries.

use serde::{Deserialize, Serialize};

use super::{CreatedWebhook, DeletedWebhook, Delivery, DeliveryList, Webhook, WebhookList};
use crate::{
    DeliveryId,
    ErrorCode::{QuotaExceeded, UnknownDelivery, UnknownWebhook, WebhookDisabled},
    Failure, Scope, WebhookId,
    endpoint::{Access, Body, Endpoint, Method, PathField, PathFields, PathId, Route, Success, list_request},
};

/// A route of webhooks.
const WEBHOOKS: Route = Route {
    tag: "webhooks",
    ..Route::new(Method::Get, "/api/webhooks", "", Access::AccountKey(&[Scope::Admin]))
};

/// A route of one webhook.
const WEBHOOK: Route = Route { path: "/api/webhooks/{id}", refusals: &[&[UnknownWebhook]], ..WEBHOOKS };

impl PathId for WebhookId {
    const FIELD: PathField = PathField {
        name: "id",
        description: "The webhook's id, `wh_` and 26 characters",
        example: "wh_01jv0000000000000000000000",
    };

    fn parse(text: &str) -> Result<Self, Failure> {
        text.parse().map_err(|_| Failure::unknown_webhook(text))
    }
}

/// The webhook and the delivery that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryPath {
    /// The id of the webhook.
    pub webhook: WebhookId,
    /// The id of the delivery.
    pub delivery: DeliveryId,
}

impl PathFields for DeliveryPath {
    const FIELDS: &'static [PathField] = &[
        WebhookId::FIELD,
        PathField {
            name: "delivery",
            description: "The delivery's id, `dlv_` and 26 characters",
            example: "dlv_01jv0000000000000000000000",
        },
    ];

    fn parse(segments: &[String]) -> Result<Self, Failure> {
        let text = |at: usize| segments.get(at).map_or("", String::as_str);
        let webhook = PathId::parse(text(0))?;
        let delivery = text(1).parse().map_err(|_| Failure::unknown_delivery(text(1)))?;
        Ok(Self { webhook, delivery })
    }

    fn to_segments(&self) -> Vec<String> {
        vec![self.webhook.to_string(), self.delivery.to_string()]
    }
}

list_request! {
    /// Lists the webhooks of the account: the query of `GET /api/webhooks`.
    ListWebhooks of WebhookId
}

impl Endpoint for ListWebhooks {
    const ROUTE: Route = Route {
        id: "list_webhooks",
        summary: "List webhooks",
        description: "The account's webhooks, newest first. Secrets are never included.",
        success: Success::Done("A page of webhooks"),
        ..WEBHOOKS
    };
    type Path = ();
    type Answer = WebhookList;
}

/// A webhook to create. Body of `POST /api/webhooks`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateWebhook {
    /// The URL that events are sent to: https, at most 2,048 characters.
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 2048, pattern = "^https?://", example = "https://hooks.example.com/skep")
    )]
    pub url: String,
    /// The event types to send, such as `ticket.completed`, or `ticket.*` for all that begin with `ticket.`. Default:
    /// all types that the key may read.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, min_items = 1, max_items = 100, example = json!(["ticket.*", "vm.ended"])))]
    pub types: Option<Vec<String>>,
    /// The purpose of the webhook, for people; at most 500 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            max_length = 500,
            pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
            example = "notifies the dashboard"
        )
    )]
    pub description: Option<String>,
}

impl Endpoint for CreateWebhook {
    const ROUTE: Route = Route {
        method: Method::Post,
        id: "create_webhook",
        summary: "Create a webhook",
        description: "Events from now on are sent to its URL as specified by Standard Webhooks: a `POST` of `{type, \
                      timestamp, data}`, where `data` is the event as in `GET /api/events`, with the headers `webhook-id` \
                      (the event's id, the same at each attempt), `webhook-timestamp` and `webhook-signature`. 2xx is \
                      success; after anything else, including redirects, the delivery is retried after 5 s to 24 h or \
                      the time in `Retry-After`, with ten attempts in all. 410, or five days without a success, disables \
                      the webhook. Events may arrive out of order or twice. The secret is only in this answer. Each type \
                      needs the read scope of its family. URLs that lead to a private address are refused, unless the \
                      operator of the server allows it.",
        example: r#"{"url": "https://hooks.example.com/skep", "types": ["ticket.*", "vm.ended"]}"#,
        refusals: &[&[QuotaExceeded]],
        success: Success::Created("The secret and the record"),
        ..WEBHOOKS
    };
    type Path = ();
    type Answer = CreatedWebhook;
}

/// Reads the record of a webhook: `GET /api/webhooks/{id}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadWebhook {}

impl Endpoint for ReadWebhook {
    const ROUTE: Route = Route {
        id: "read_webhook",
        summary: "Read a webhook",
        description: "Returns its record, without the secret.",
        success: Success::Done("The record"),
        ..WEBHOOK
    };
    type Path = WebhookId;
    type Answer = Webhook;
}

/// Changes to a webhook. Body of `PATCH /api/webhooks/{id}`. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeWebhook {
    /// The new URL: https, at most 2,048 characters.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, max_length = 2048, pattern = "^https?://", example = "https://hooks.example.com/skep"))]
    pub url: Option<String>,
    /// Replaces all event types.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, min_items = 1, max_items = 100, example = json!(["ticket.*"])))]
    pub types: Option<Vec<String>>,
    /// The purpose of the webhook, for people; null removes it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 500, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$", example = "notifies the dashboard"))]
    pub description: Option<Option<String>>,
    /// Whether events are sent. Events that occur while it is false are never sent. Deliveries that were pending
    /// before continue.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = bool, example = true))]
    pub enabled: Option<bool>,
}

impl Endpoint for ChangeWebhook {
    const ROUTE: Route = Route {
        method: Method::Patch,
        id: "change_webhook",
        summary: "Change a webhook",
        description: "Absent fields stay unchanged. With `enabled: false` nothing is sent. When it is enabled again, \
                      pending deliveries continue; events that occurred while it was disabled are not sent.",
        example: r#"{"enabled": true}"#,
        success: Success::Done("The record"),
        body: Body::Optional,
        ..WEBHOOK
    };
    type Path = WebhookId;
    type Answer = Webhook;
}

/// Deletes a webhook: `DELETE /api/webhooks/{id}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeleteWebhook {}

impl Endpoint for DeleteWebhook {
    const ROUTE: Route = Route {
        method: Method::Delete,
        id: "delete_webhook",
        summary: "Delete a webhook",
        description: "Nothing more is sent, and its deliveries are deleted.",
        success: Success::Done("It was deleted"),
        ..WEBHOOK
    };
    type Path = WebhookId;
    type Answer = DeletedWebhook;
}

/// Options of a rotation of the secret. Body of `POST /api/webhooks/{id}/rotate`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RotateWebhook {
    /// How long messages are signed with both the old and the new secret, in milliseconds: at most 7 days; default 24
    /// hours. 0 invalidates the old secret at once.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::present"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = u64, minimum = 0, maximum = 604_800_000_u64, example = 86_400_000))]
    pub overlap_ms: Option<u64>,
}

impl Endpoint for RotateWebhook {
    const ROUTE: Route = Route {
        method: Method::Post,
        path: "/api/webhooks/{id}/rotate",
        id: "rotate_webhook",
        summary: "Rotate a secret",
        description: "Gives the webhook a new secret, which is only in this answer. The old one stays valid for \
                      `overlap_ms`: each request has both signatures, and a receiver can check either. A key cannot rotate \
                      a webhook that sends events that it may not read.",
        example: r#"{"overlap_ms": 3600000}"#,
        success: Success::Created("The new secret and the record"),
        body: Body::Optional,
        ..WEBHOOK
    };
    type Path = WebhookId;
    type Answer = CreatedWebhook;
}

list_request! {
    /// Lists the deliveries of a webhook: the query of `GET /api/webhooks/{id}/deliveries`.
    ListDeliveries of DeliveryId
}

impl Endpoint for ListDeliveries {
    const ROUTE: Route = Route {
        path: "/api/webhooks/{id}/deliveries",
        id: "list_deliveries",
        summary: "List deliveries",
        description: "The deliveries of this webhook, newest first, each with its latest attempts: time, duration, \
                      status and the beginning of the answer. They are kept as long as their events: 30 days or 10 GiB.",
        success: Success::Done("A page of deliveries"),
        ..WEBHOOK
    };
    type Path = WebhookId;
    type Answer = DeliveryList;
}

/// Sends an event again: `POST /api/webhooks/{id}/deliveries/{delivery}/redeliver`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redeliver {}

impl Endpoint for Redeliver {
    const ROUTE: Route = Route {
        method: Method::Post,
        path: "/api/webhooks/{id}/deliveries/{delivery}/redeliver",
        id: "redeliver",
        summary: "Repeat a delivery",
        description: "Sends the event again with the same `webhook-id`, whatever its state, with as many attempts as a \
                      new delivery.",
        refusals: &[&[UnknownWebhook, UnknownDelivery, WebhookDisabled]],
        success: Success::Accepted("The delivery, which will be sent"),
        body: Body::Empty,
        ..WEBHOOK
    };
    type Path = DeliveryPath;
    type Answer = Delivery;
}

/// Sends a test event: `POST /api/webhooks/{id}/test`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TestWebhook {}

impl Endpoint for TestWebhook {
    const ROUTE: Route = Route {
        method: Method::Post,
        path: "/api/webhooks/{id}/test",
        id: "test_webhook",
        summary: "Send a test event",
        description: "Sends a `webhook.test` event, which is signed and retried like any other.",
        refusals: &[&[UnknownWebhook, WebhookDisabled]],
        success: Success::Accepted("The delivery, which will be sent"),
        body: Body::Empty,
        ..WEBHOOK
    };
    type Path = WebhookId;
    type Answer = Delivery;
}
