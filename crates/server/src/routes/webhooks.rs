//! `/api/webhooks`: creates, lists, reads, changes, deletes and rotates webhooks. Their deliveries are in `deliveries`.

use std::sync::Arc;

use axum::extract::State;
use skep_api::{
    ErrorCode, Failure, Scope, WebhookId,
    webhooks::{
        ChangeWebhook, CreateWebhook, CreatedWebhook, DeletedWebhook, RotateWebhook, Webhook, WebhookList,
    },
};
use skep_store::{DeleteWebhook, EventFamily, ListWebhooks, WebhookStore};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Created, Routes, created, page::Page};
use crate::{
    auth::Identity,
    body::Body,
    error::Refusal,
    events::parse_kinds,
    extract::{Admin, Caller, NoParameters, Query, RequestInfo, Segment},
    json::Json,
    openapi::refusals::{CreateWebhookRefused, WebhookRefused},
    random,
    webhooks::{Secret, WebhookContext, parse_target, seal_context},
};

mod deliveries;

/// The most webhooks of one account.
const MAX_WEBHOOKS: u32 = 100;
const MAX_TYPES: usize = 100;
/// The longest description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 500;
/// How long the old secret stays valid after a rotation: by default, and at most.
const DEFAULT_OVERLAP_MS: u64 = 24 * 3_600_000;
const MAX_OVERLAP_MS: u64 = 7 * DEFAULT_OVERLAP_MS;

#[derive(Clone)]
pub(crate) struct WebhooksState {
    pub store: Arc<dyn WebhookStore>,
    /// Encrypts their secrets, and checks their URLs.
    pub context: WebhookContext,
}

pub(crate) fn routes(state: WebhooksState) -> Routes {
    let mut routes = vec![
        routes!(list, create).with_state(state.clone()),
        routes!(read, change, delete).with_state(state.clone()),
        routes!(rotate).with_state(state.clone()),
    ];
    routes.extend(deliveries::routes(state));
    routes
}

/// List webhooks
///
/// The account's webhooks, newest first. Secrets are never included.
#[utoipa::path(
    get, path = "/api/webhooks", tag = "webhooks", operation_id = "list_webhooks", params(Page<WebhookId>),
    security(("bearer" = ["admin"])),
    responses((status = 200, description = "A page of webhooks", body = WebhookList))
)]
async fn list(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    Query(page): Query<Page<WebhookId>>,
) -> Answer<WebhookList> {
    let (limit, before) = page.read()?;
    let page = state.store.list_webhooks(ListWebhooks { account: caller.account.id, limit, before }).await?;
    Ok(Json(WebhookList {
        webhooks: page.webhooks.into_iter().map(to_api).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    }))
}

/// Create a webhook
///
/// Events from now on are sent to its URL as specified by Standard Webhooks: a `POST` of `{type, timestamp, data}`,
/// where `data` is the event as in `GET /api/events`, with the headers `webhook-id` (the event's id, the same at each
/// attempt), `webhook-timestamp` and `webhook-signature`. 2xx is success; after anything else, including redirects, the
/// delivery is retried after 5 s to 24 h or the time in `Retry-After`, with ten attempts in all. 410, or five days
/// without a success, disables the webhook. Events may arrive out of order or twice. The secret is only in this answer.
/// Each type needs the read scope of its family. URLs that lead to a private address are refused, unless the operator
/// of the server allows it.
#[utoipa::path(
    post, path = "/api/webhooks", tag = "webhooks", operation_id = "create_webhook", security(("bearer" = ["admin"])),
    request_body(content = CreateWebhook, example = json!({
        "url": "https://hooks.example.com/skep", "types": ["ticket.*", "vm.ended"]
    })),
    responses(
        (status = 201, description = "The secret and the record", body = CreatedWebhook),
        CreateWebhookRefused,
    )
)]
async fn create(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(request): Body<CreateWebhook>,
) -> Created<CreatedWebhook> {
    let url = parse_target(&request.url, &state.context.rules)?.to_string();
    let types = request.types.unwrap_or_else(|| families(&caller));
    check_types(&caller, &types)?;
    let description = request.description.map(check_description).transpose()?;
    let (id, account) = (WebhookId::generate(), caller.account.id);
    let secret = Secret::from_bytes(random::bytes()?.to_vec());
    let sealed = state.context.seal.seal(&seal_context(account, id), secret.bytes()).await?;
    let made = state.store.create_webhook(skep_store::CreateWebhook {
        id,
        account,
        url,
        types,
        description,
        secret: sealed,
        max_webhooks: MAX_WEBHOOKS,
        at: call.arrival.wall,
    });
    let made = made.await?;
    call.audit.set_resource(id);
    created(CreatedWebhook { secret: secret.expose(), record: to_api(made) })
}

/// Read a webhook
///
/// Returns its record, without the secret.
#[utoipa::path(
    get, path = "/api/webhooks/{id}", tag = "webhooks", operation_id = "read_webhook", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The webhook's id, `wh_` and 26 characters", example = "wh_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The record", body = Webhook),
        WebhookRefused,
    )
)]
async fn read(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
) -> Answer<Webhook> {
    Ok(Json(to_api(state.store.webhook(caller.account.id, webhook_id(&id)?).await?)))
}

/// Change a webhook
///
/// Absent fields stay unchanged. With `enabled: false` nothing is sent. When it is enabled again, pending deliveries
/// continue; events that occurred while it was disabled are not sent.
#[utoipa::path(
    patch, path = "/api/webhooks/{id}", tag = "webhooks", operation_id = "change_webhook",
    security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The webhook's id, `wh_` and 26 characters", example = "wh_01jv0000000000000000000000")),
    request_body(content = inline(Option<ChangeWebhook>), example = json!({"enabled": true})),
    responses(
        (status = 200, description = "The record", body = Webhook),
        WebhookRefused,
    )
)]
async fn change(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(request): Body<ChangeWebhook>,
) -> Answer<Webhook> {
    let url = request.url.as_deref().map(|url| parse_target(url, &state.context.rules)).transpose()?;
    if let Some(types) = &request.types {
        check_types(&caller, types)?;
    }
    let description = match request.description {
        Some(Some(text)) => Some(Some(check_description(text)?)),
        other => other,
    };
    let id = webhook_id(&id)?;
    let known = state.store.webhook(caller.account.id, id).await?;
    // The owner of a new endpoint can read everything that is sent.
    if url.is_some() && request.types.is_none() {
        check_types(&caller, &known.types)?;
    }
    let changed = state.store.change_webhook(skep_store::ChangeWebhook {
        account: caller.account.id,
        id,
        url: url.map(String::from),
        types: request.types,
        description,
        enabled: request.enabled,
        at: call.arrival.wall,
    });
    Ok(Json(to_api(changed.await?)))
}

/// Delete a webhook
///
/// Nothing more is sent, and its deliveries are deleted.
#[utoipa::path(
    delete, path = "/api/webhooks/{id}", tag = "webhooks", operation_id = "delete_webhook",
    security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The webhook's id, `wh_` and 26 characters", example = "wh_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "It was deleted", body = DeletedWebhook),
        WebhookRefused,
    )
)]
async fn delete(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
) -> Answer<DeletedWebhook> {
    let id = webhook_id(&id)?;
    state
        .store
        .delete_webhook(DeleteWebhook { account: caller.account.id, id, at: call.arrival.wall })
        .await?;
    Ok(Json(DeletedWebhook { id, deleted: true }))
}

/// Rotate a secret
///
/// Gives the webhook a new secret, which is only in this answer. The old one stays valid for `overlap_ms`: each request
/// has both signatures, and a receiver can check either. A key cannot rotate a webhook that sends events that it may
/// not read.
#[utoipa::path(
    post, path = "/api/webhooks/{id}/rotate", tag = "webhooks", operation_id = "rotate_webhook",
    security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The webhook's id, `wh_` and 26 characters", example = "wh_01jv0000000000000000000000")),
    request_body(content = inline(Option<RotateWebhook>), example = json!({"overlap_ms": 3_600_000})),
    responses(
        (status = 201, description = "The new secret and the record", body = CreatedWebhook),
        WebhookRefused,
    )
)]
async fn rotate(
    State(state): State<WebhooksState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(request): Body<RotateWebhook>,
) -> Created<CreatedWebhook> {
    let overlap = request.overlap_ms.unwrap_or(DEFAULT_OVERLAP_MS);
    if overlap > MAX_OVERLAP_MS {
        let message =
            format!("`overlap_ms` is {overlap}; it must be at most {MAX_OVERLAP_MS}, which is 7 days");
        return Err(invalid(message).into());
    }
    let (id, account, at) = (webhook_id(&id)?, caller.account.id, call.arrival.wall);
    let known = state.store.webhook(account, id).await?;
    check_types(&caller, &known.types)?;
    let overlap = jiff::SignedDuration::from_millis(i64::try_from(overlap).unwrap_or_default());
    let secret = Secret::from_bytes(random::bytes()?.to_vec());
    let sealed = state.context.seal.seal(&seal_context(account, id), secret.bytes()).await?;
    let previous_until = at.checked_add(overlap).ok().filter(|_| !overlap.is_zero());
    let rotation = skep_store::RotateWebhook { account, id, secret: sealed, previous_until, at };
    let rotated = state.store.rotate_webhook(rotation).await?;
    created(CreatedWebhook { secret: secret.expose(), record: to_api(rotated) })
}

/// The patterns of all families that a key may read.
fn families(caller: &Identity) -> Vec<String> {
    let readable = EventFamily::ALL.iter().filter(|family| caller.key.scopes.contains(&family.scope()));
    readable.map(|family| family.pattern().to_owned()).collect()
}

/// Checks a list of types, and that the key has the scopes to read them.
fn check_types(caller: &Identity, types: &[String]) -> Result<(), Refusal> {
    if types.is_empty() || types.len() > MAX_TYPES {
        let message = format!("`types` has {} entries; give 1 to {MAX_TYPES}, such as ticket.*", types.len());
        return Err(invalid(message).into());
    }
    let mut missing: Option<Scope> = None;
    for name in types {
        let mut scopes = parse_kinds(name)?.into_iter().map(|kind| kind.family().scope());
        missing = missing.or_else(|| scopes.find(|scope| !caller.key.scopes.contains(scope)));
    }
    let Some(scope) = missing else { return Ok(()) };
    let message =
        format!("this key lacks the scope `{scope}`, which such events need; use a key that has it");
    Err(Refusal::new(ErrorCode::ScopeMissing, message))
}

fn check_description(text: String) -> Result<String, Failure> {
    let length = text.chars().count();
    if length > MAX_DESCRIPTION_CHARS || text.chars().any(char::is_control) {
        let message = format!(
            "`description` has {length} characters; give one line of at most {MAX_DESCRIPTION_CHARS}"
        );
        return Err(invalid(message));
    }
    Ok(text)
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidValue, message)
}

/// A malformed id gets the same error as an unknown webhook.
fn webhook_id(text: &str) -> Result<WebhookId, skep_store::Error> {
    text.parse().map_err(|_| skep_store::Error::UnknownWebhook { id: text.to_owned() })
}

fn to_api(webhook: skep_store::Webhook) -> Webhook {
    Webhook {
        id: webhook.id,
        url: webhook.url,
        types: webhook.types,
        description: webhook.description,
        enabled: webhook.disabled.is_none(),
        disabled_at: webhook.disabled.map(|disabled| disabled.at),
        disabled_reason: webhook.disabled.map(|disabled| disabled.reason),
        previous_secret_until: webhook.previous.map(|previous| previous.until),
        created_at: webhook.created_at,
        updated_at: webhook.updated_at,
    }
}
