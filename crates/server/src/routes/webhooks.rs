//! `/api/webhooks`: creates, lists, reads, changes, deletes and rotates webhooks. Their deliveries are in `deliveries`.

use std::sync::Arc;

use skep_api::{
    ErrorCode, Failure, Scope, WebhookId,
    webhooks::{
        ChangeWebhook, CreateWebhook, CreatedWebhook, DeleteWebhook, DeletedWebhook, ListWebhooks,
        ReadWebhook, RotateWebhook, Webhook, WebhookList,
    },
};
use skep_store::{EventFamily, WebhookStore};

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
    page,
};
use crate::{
    auth::Identity,
    error::Refusal,
    events::parse_kinds,
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

pub(crate) fn routes(state: &WebhooksState) -> Routes {
    let mut routes = endpoints![state; ListWebhooks, CreateWebhook, ReadWebhook, ChangeWebhook, DeleteWebhook, RotateWebhook];
    routes.extend(deliveries::routes(state));
    routes
}

impl Handle<WebhooksState> for ListWebhooks {
    async fn handle(self, state: WebhooksState, request: Request<()>) -> Result<WebhookList, Refusal> {
        let (limit, before) = page::check(self.limit, self.cursor.as_deref())?;
        let account = request.caller.account.id;
        let page = state.store.list_webhooks(skep_store::ListWebhooks { account, limit, before }).await?;
        Ok(WebhookList {
            webhooks: page.webhooks.into_iter().map(to_api).collect(),
            next_cursor: page.next.map(|id| id.to_string()),
        })
    }
}

impl Handle<WebhooksState> for CreateWebhook {
    async fn handle(self, state: WebhooksState, request: Request<()>) -> Result<CreatedWebhook, Refusal> {
        let Request { caller, info, .. } = request;
        let url = parse_target(&self.url, &state.context.rules)?.to_string();
        let types = self.types.unwrap_or_else(|| families(&caller));
        check_types(&caller, &types)?;
        let description = self.description.map(check_description).transpose()?;
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
            at: info.arrival.wall,
        });
        let made = made.await?;
        info.audit.set_resource(id);
        Ok(CreatedWebhook { secret: secret.expose(), record: to_api(made) })
    }
}

impl Handle<WebhooksState> for ReadWebhook {
    async fn handle(self, state: WebhooksState, request: Request<WebhookId>) -> Result<Webhook, Refusal> {
        Ok(to_api(state.store.webhook(request.caller.account.id, request.path()?).await?))
    }
}

impl Handle<WebhooksState> for ChangeWebhook {
    async fn handle(self, state: WebhooksState, request: Request<WebhookId>) -> Result<Webhook, Refusal> {
        let caller = &request.caller;
        let url = self.url.as_deref().map(|url| parse_target(url, &state.context.rules)).transpose()?;
        if let Some(types) = &self.types {
            check_types(caller, types)?;
        }
        let description = match self.description {
            Some(Some(text)) => Some(Some(check_description(text)?)),
            other => other,
        };
        let (id, account) = (request.path()?, caller.account.id);
        let known = state.store.webhook(account, id).await?;
        // The owner of a new endpoint can read everything that is sent.
        if url.is_some() && self.types.is_none() {
            check_types(caller, &known.types)?;
        }
        let changed = state.store.change_webhook(skep_store::ChangeWebhook {
            account,
            id,
            url: url.map(String::from),
            types: self.types,
            description,
            enabled: self.enabled,
            at: request.info.arrival.wall,
        });
        Ok(to_api(changed.await?))
    }
}

impl Handle<WebhooksState> for DeleteWebhook {
    async fn handle(
        self,
        state: WebhooksState,
        request: Request<WebhookId>,
    ) -> Result<DeletedWebhook, Refusal> {
        let (id, account, at) = (request.path()?, request.caller.account.id, request.info.arrival.wall);
        state.store.delete_webhook(skep_store::DeleteWebhook { account, id, at }).await?;
        Ok(DeletedWebhook { id, deleted: true })
    }
}

impl Handle<WebhooksState> for RotateWebhook {
    async fn handle(
        self,
        state: WebhooksState,
        request: Request<WebhookId>,
    ) -> Result<CreatedWebhook, Refusal> {
        let overlap = self.overlap_ms.unwrap_or(DEFAULT_OVERLAP_MS);
        if overlap > MAX_OVERLAP_MS {
            let message =
                format!("`overlap_ms` is {overlap}; it must be at most {MAX_OVERLAP_MS}, which is 7 days");
            return Err(invalid(message).into());
        }
        let (id, account, at) = (request.path()?, request.caller.account.id, request.info.arrival.wall);
        let known = state.store.webhook(account, id).await?;
        check_types(&request.caller, &known.types)?;
        let overlap = jiff::SignedDuration::from_millis(i64::try_from(overlap).unwrap_or_default());
        let secret = Secret::from_bytes(random::bytes()?.to_vec());
        let sealed = state.context.seal.seal(&seal_context(account, id), secret.bytes()).await?;
        let previous_until = at.checked_add(overlap).ok().filter(|_| !overlap.is_zero());
        let rotation = skep_store::RotateWebhook { account, id, secret: sealed, previous_until, at };
        let rotated = state.store.rotate_webhook(rotation).await?;
        Ok(CreatedWebhook { secret: secret.expose(), record: to_api(rotated) })
    }
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
