//! Requests of `/api/webhooks`.

use skep_api::{
    DeliveryId, WebhookId,
    webhooks::{
        ChangeWebhook, CreateWebhook, CreatedWebhook, DeletedWebhook, Delivery, DeliveryList, RotateWebhook,
        Webhook, WebhookList,
    },
};

use crate::{Answered, Client, Result, client::encode_segment};

impl Client {
    /// `GET /api/webhooks`: a page of at most `limit` webhooks. `cursor` is the `next_cursor` of the previous page.
    ///
    /// # Errors
    /// `invalid_value`, and those of every request: see [`crate::Error`].
    pub async fn webhooks(&self, limit: u32, cursor: Option<&str>) -> Result<Answered<WebhookList>> {
        self.get(&paged("api/webhooks", limit, cursor)).await
    }

    /// `POST /api/webhooks`: creates a webhook.
    ///
    /// # Errors
    /// `invalid_value`, `quota_exceeded`, and those of every request.
    pub async fn create_webhook(&self, request: &CreateWebhook) -> Result<Answered<CreatedWebhook>> {
        self.post("api/webhooks", request).await
    }

    /// `GET /api/webhooks/{id}`: the record of a webhook.
    ///
    /// # Errors
    /// `unknown_webhook`, and those of every request.
    pub async fn webhook(&self, id: WebhookId) -> Result<Answered<Webhook>> {
        self.get(&format!("api/webhooks/{id}")).await
    }

    /// `PATCH /api/webhooks/{id}`: changes a webhook.
    ///
    /// # Errors
    /// `unknown_webhook`, `invalid_value`, and those of every request.
    pub async fn change_webhook(&self, id: WebhookId, change: &ChangeWebhook) -> Result<Answered<Webhook>> {
        self.patch(&format!("api/webhooks/{id}"), change).await
    }

    /// `DELETE /api/webhooks/{id}`: deletes a webhook.
    ///
    /// # Errors
    /// `unknown_webhook`, and those of every request.
    pub async fn delete_webhook(&self, id: WebhookId) -> Result<Answered<DeletedWebhook>> {
        self.delete(&format!("api/webhooks/{id}")).await
    }

    /// `POST /api/webhooks/{id}/rotate`: replaces the secret.
    ///
    /// # Errors
    /// `unknown_webhook`, `invalid_value`, and those of every request.
    pub async fn rotate_webhook(
        &self,
        id: WebhookId,
        request: &RotateWebhook,
    ) -> Result<Answered<CreatedWebhook>> {
        self.post(&format!("api/webhooks/{id}/rotate"), request).await
    }

    /// `GET /api/webhooks/{id}/deliveries`: a page of at most `limit` deliveries. `cursor` is the `next_cursor` of
    /// the previous page.
    ///
    /// # Errors
    /// `unknown_webhook`, and those of every request.
    pub async fn deliveries(
        &self,
        id: WebhookId,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Answered<DeliveryList>> {
        self.get(&paged(&format!("api/webhooks/{id}/deliveries"), limit, cursor)).await
    }

    /// `POST /api/webhooks/{id}/deliveries/{delivery}/redeliver`: sends an event again.
    ///
    /// # Errors
    /// `unknown_webhook`, `unknown_delivery`, `webhook_disabled`, and those of every request.
    pub async fn redeliver(&self, id: WebhookId, delivery: DeliveryId) -> Result<Answered<Delivery>> {
        let path = format!("api/webhooks/{id}/deliveries/{delivery}/redeliver");
        self.post(&path, &serde_json::json!({})).await
    }

    /// `POST /api/webhooks/{id}/test`: sends a test event.
    ///
    /// # Errors
    /// `unknown_webhook`, `webhook_disabled`, and those of every request.
    pub async fn test_webhook(&self, id: WebhookId) -> Result<Answered<Delivery>> {
        self.post(&format!("api/webhooks/{id}/test"), &serde_json::json!({})).await
    }
}

fn paged(path: &str, limit: u32, cursor: Option<&str>) -> String {
    let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={}", encode_segment(cursor)));
    format!("{path}?limit={limit}{cursor}")
}
