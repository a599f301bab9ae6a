//! `/api/webhooks/{id}/deliveries`: lists deliveries, repeats one, and sends test events.

use axum::extract::State;
use serde_json::{Map, Value, json};
use skep_api::{
    DeliveryId,
    budget::MAX_ANSWER_BYTES,
    webhooks::{Delivery, DeliveryList, TEST_EVENT},
};
use skep_store::{ListDeliveries, Redeliver, TestWebhook};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{WebhooksState, webhook_id};
use crate::{
    body::NoBody,
    error::Refusal,
    extract::{Admin, Caller, DeliveryPath, NoParameters, Query, RequestInfo, Segment},
    json::Json,
    openapi::refusals::{RedeliverRefused, SendWebhookRefused, WebhookRefused},
    routes::{Answer, Routes, page::Page},
};

pub(super) fn routes(state: WebhooksState) -> Routes {
    vec![
        routes!(list).with_state(state.clone()),
        routes!(again).with_state(state.clone()),
        routes!(test).with_state(state),
    ]
}

/// List deliveries
///
/// The deliveries of this webhook, newest first, each with its latest attempts: time, duration, status and the
/// beginning of the answer. They are kept as long as their events: 30 days or 10 GiB.
#[utoipa::path(
    get, path = "/api/webhooks/{id}/deliveries", tag = "webhooks", operation_id = "list_deliveries",
    security(("bearer" = ["admin"])),
    params(
        ("id" = String, Path, description = "The webhook's id, `wh_` and 26 characters", example = "wh_01jv0000000000000000000000"),
        Page<DeliveryId>,
    ),
    responses(
        (status = 200, description = "A page of deliveries", body = DeliveryList),
        WebhookRefused,
    )
)]
async fn list(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    Query(page): Query<Page<DeliveryId>>,
) -> Answer<DeliveryList> {
    let (limit, before) = page.read()?;
    let query = ListDeliveries { account: caller.account.id, webhook: webhook_id(&id)?, limit, before };
    caller.memory.reserve(MAX_ANSWER_BYTES as u64).await?;
    let page = state.store.list_deliveries(query).await?;
    Ok(Json(DeliveryList { deliveries: page.deliveries, next_cursor: page.next.map(|id| id.to_string()) }))
}

/// Repeat a delivery
///
/// Sends the event again with the same `webhook-id`, whatever its state, with as many attempts as a new delivery.
#[utoipa::path(
    post, path = "/api/webhooks/{id}/deliveries/{delivery}/redeliver", tag = "webhooks", operation_id = "redeliver",
    security(("bearer" = ["admin"])),
    params(
        ("id" = String, Path, description = "The webhook's id, `wh_` and 26 characters", example = "wh_01jv0000000000000000000000"),
        ("delivery" = String, Path, description = "The delivery's id, `dlv_` and 26 characters", example = "dlv_01jv0000000000000000000000"),
    ),
    responses(
        (status = 202, description = "The delivery, which will be sent", body = Delivery),
        RedeliverRefused,
    )
)]
async fn again(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    path: DeliveryPath,
    _: Query<NoParameters>,
    call: RequestInfo,
    _: NoBody,
) -> Accepted<Delivery> {
    let webhook = webhook_id(&path.webhook)?;
    let account = caller.account.id;
    let delivery = match path.delivery.parse() {
        Ok(delivery) => delivery,
        Err(_) => {
            state.store.webhook(account, webhook).await?;
            return Err(skep_store::Error::UnknownDelivery { id: path.delivery }.into());
        }
    };
    let command = Redeliver { account, webhook, delivery, at: call.arrival.wall };
    accepted(state.store.redeliver(command).await?)
}

/// Send a test event
///
/// Sends a `webhook.test` event, which is signed and retried like any other.
#[utoipa::path(
    post, path = "/api/webhooks/{id}/test", tag = "webhooks", operation_id = "test_webhook",
    security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The webhook's id, `wh_` and 26 characters", example = "wh_01jv0000000000000000000000")),
    responses(
        (status = 202, description = "The delivery, which will be sent", body = Delivery),
        SendWebhookRefused,
    )
)]
async fn test(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
    _: NoBody,
) -> Accepted<Delivery> {
    let (webhook, delivery, at) = (webhook_id(&id)?, DeliveryId::generate(), call.arrival.wall);
    let request_id = call.id.as_str();
    let data = json!({
        "id": delivery, "type": TEST_EVENT, "at": format!("{at:.3}"), "request_id": request_id, "webhook": webhook,
    });
    let data = match data {
        Value::Object(data) => data,
        _ => Map::new(),
    };
    let command = TestWebhook { account: caller.account.id, webhook, delivery, data, at };
    accepted(state.store.test_webhook(command).await?)
}

/// The result of a handler whose effect happens later.
type Accepted<T> = Result<(http::StatusCode, Json<T>), Refusal>;

fn accepted<T>(answer: T) -> Accepted<T> {
    Ok((http::StatusCode::ACCEPTED, Json(answer)))
}
