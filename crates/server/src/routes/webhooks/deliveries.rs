//! `/api/webhooks/{id}/deliveries`: lists deliveries, repeats one, and sends test events.

use serde_json::{Map, Value, json};
use skep_api::{
    DeliveryId, WebhookId,
    budget::MAX_ANSWER_BYTES,
    webhooks::{Delivery, DeliveryList, DeliveryPath, ListDeliveries, Redeliver, TEST_EVENT, TestWebhook},
};

use super::WebhooksState;
use crate::{
    error::Refusal,
    routes::{
        Routes,
        handle::{Handle, Request, endpoints},
        page,
    },
};

pub(super) fn routes(state: &WebhooksState) -> Routes {
    endpoints![state; ListDeliveries, Redeliver, TestWebhook]
}

impl Handle<WebhooksState> for ListDeliveries {
    async fn handle(
        self,
        state: WebhooksState,
        request: Request<WebhookId>,
    ) -> Result<DeliveryList, Refusal> {
        let (limit, before) = page::check(self.limit, self.cursor.as_deref())?;
        let (webhook, caller) = (request.path()?, &request.caller);
        caller.memory.reserve(MAX_ANSWER_BYTES as u64).await?;
        let query = skep_store::ListDeliveries { account: caller.account.id, webhook, limit, before };
        let page = state.store.list_deliveries(query).await?;
        Ok(DeliveryList { deliveries: page.deliveries, next_cursor: page.next.map(|id| id.to_string()) })
    }
}

impl Handle<WebhooksState> for Redeliver {
    async fn handle(self, state: WebhooksState, request: Request<DeliveryPath>) -> Result<Delivery, Refusal> {
        let DeliveryPath { webhook, delivery } = request.path()?;
        let (account, at) = (request.caller.account.id, request.info.arrival.wall);
        Ok(state.store.redeliver(skep_store::Redeliver { account, webhook, delivery, at }).await?)
    }
}

impl Handle<WebhooksState> for TestWebhook {
    async fn handle(self, state: WebhooksState, request: Request<WebhookId>) -> Result<Delivery, Refusal> {
        let (webhook, delivery, at) = (request.path()?, DeliveryId::generate(), request.info.arrival.wall);
        let request_id = request.id();
        let data = json!({
            "id": delivery, "type": TEST_EVENT, "at": format!("{at:.3}"), "request_id": request_id, "webhook": webhook,
        });
        let data = match data {
            Value::Object(data) => data,
            _ => Map::new(),
        };
        let command =
            skep_store::TestWebhook { account: request.caller.account.id, webhook, delivery, data, at };
        Ok(state.store.test_webhook(command).await?)
    }
}
