//! `/api/keys`: lists, creates, reads, rotates and revokes keys.

use std::sync::Arc;

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_accounts::{
    GrantContext, KeyGrant, KeySecret, check_administration, check_expiry, check_rotation, grant,
};
use skep_api::{
    AccountId, ErrorCode, Failure, KeyId, Scope, VmId,
    keys::{CreateKey, CreatedKey, Key, KeyList, RevokedKeys, RotateKey},
};
use skep_store::{Account, ListKeys, NewKey, RevokeAllKeys, RevokeKey, Store};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Created, Routes, created, page::Page};
use crate::{
    auth::Identity,
    body::Body,
    error::Refusal,
    extract::{Admin, Caller, NoParameters, Query, RequestInfo, Segment, parse_vm},
    json::Json,
    openapi::refusals::{AccountRefused, CreateKeyRefused, KeyRefused, RotateRefused},
    random,
    swarm_handle::SwarmHandle,
};

#[derive(Clone)]
pub(crate) struct KeysState {
    pub store: Arc<dyn Store>,
    /// Used to look up the VM to which a key is bound.
    pub vms: SwarmHandle,
}

pub(crate) fn routes(state: KeysState) -> Routes {
    vec![
        routes!(list, create, revoke_all).with_state(state.clone()),
        routes!(read, revoke).with_state(state.clone()),
        routes!(rotate).with_state(state),
    ]
}

/// List keys
///
/// The keys of the account, including revoked ones, newest first. Keys with scopes that the calling key lacks are left
/// out. Secrets are never included.
#[utoipa::path(
    get, path = "/api/keys", tag = "keys", operation_id = "list_keys", params(Page<KeyId>), security(("bearer" = ["admin"])),
    responses((status = 200, description = "A page of keys", body = KeyList))
)]
async fn list(
    State(state): State<KeysState>,
    caller: Caller<Admin>,
    Query(page): Query<Page<KeyId>>,
) -> Answer<KeyList> {
    let (limit, before) = page.read()?;
    let (account, scopes) = (caller.account.id, caller.key.scopes.clone());
    let page = state.store.list_keys(ListKeys { account, scopes, limit, before }).await?;
    Ok(Json(KeyList {
        keys: page.keys.into_iter().map(|record| record.key).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    }))
}

/// Create a key
///
/// Takes exactly one of `role` and `scopes`. The key itself is only in this answer; the server does not store it. A key
/// cannot grant scopes that it does not have. With `account` the key belongs to another account, which also needs the
/// scope `server:admin`.
///
/// This operation needs the key itself: a session is refused.
#[utoipa::path(
    post, path = "/api/keys", tag = "keys", operation_id = "create_key", security(("bearer" = ["admin"])),
    request_body(content = CreateKey, example = json!({"name": "ci", "role": "agent"})),
    responses(
        (status = 201, description = "The key and its record", body = CreatedKey),
        CreateKeyRefused,
    )
)]
async fn create(
    State(state): State<KeysState>,
    caller: Caller<Admin>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(request): Body<CreateKey>,
) -> Created<CreatedKey> {
    caller.require_key_itself()?;
    let now = Timestamp::now();
    let creator = &caller.key.scopes;
    if request.account.is_some() {
        caller.require_scope(Scope::ServerAdmin)?;
    }
    // Before the account is looked up, so that an invalid request is reported first.
    grant(&request, GrantContext { account: &caller.account.name, creator }, now)?;
    let account = state.account(&caller, request.account).await?;
    let granted = grant(&request, GrantContext { account: &account.name, creator }, now)?;
    let vm = bound_vm(&state.vms, account.id, &granted).await?;
    let secret = KeySecret::from_random(granted.environment, random::bytes()?);
    let record = state.store.create_key(NewKey {
        account: account.id,
        name: granted.name,
        environment: granted.environment,
        role: granted.role,
        scopes: granted.scopes,
        vm,
        hash: secret.hash(),
        prefix: secret.prefix().to_owned(),
        expires_at: granted.expires_at,
        at: now,
        request_id: Some(call.id.as_str().to_owned()),
    });
    let record = record.await?;
    call.audit.set_resource(record.key.id);
    if let Err(refusal) = state.admit_vm(&record.key).await {
        state.revoke_unseen(&record.key, &call).await;
        return Err(refusal);
    }
    created(CreatedKey { key: secret.expose().to_owned(), record: record.key })
}

impl KeysState {
    /// A key of the caller's account that has no scopes beyond those of the caller.
    async fn administered(&self, caller: &Identity, id: &str) -> Result<Key, Refusal> {
        let key = self.store.key(caller.account.id, key_id(id)?).await?.key;
        check_administration(&key, &caller.key.scopes)?;
        Ok(key)
    }

    /// The account of a request: the given one, or that of the caller.
    async fn account(&self, caller: &Identity, named: Option<AccountId>) -> Result<Account, Refusal> {
        match named {
            Some(id) if id != caller.account.id => Ok(self.store.account(id).await?),
            _ => Ok(caller.account.clone()),
        }
    }

    /// Lets the VM that a key is bound to reach the API.
    async fn admit_vm(&self, key: &Key) -> Result<(), Refusal> {
        if let Some(vm) = key.vm {
            self.vms.swarm().await?.admit_to_api(&key.account, vm).await?;
        }
        Ok(())
    }

    /// Revokes a new key after its creation failed. The caller does not get its secret, and can use its name again.
    async fn revoke_unseen(&self, key: &Key, call: &RequestInfo) {
        let (id, request_id) = (key.id, Some(call.id.as_str().to_owned()));
        let command = RevokeKey { account: key.account, id, at: Timestamp::now(), request_id };
        if let Err(error) = self.store.revoke_key(command).await {
            tracing::error!(key = %id, %error, "key {id}, whose creation was refused, is not revoked: {error}");
        }
    }
}

async fn bound_vm(
    vms: &SwarmHandle,
    account: AccountId,
    granted: &KeyGrant,
) -> Result<Option<VmId>, Refusal> {
    let Some(field) = &granted.vm else { return Ok(None) };
    let vm = parse_vm(&field.as_text())?;
    Ok(Some(vms.swarm().await?.vm(&account, vm).await?.id))
}

/// Read a key
///
/// Returns its record, without the secret. A key cannot read one that has more scopes.
#[utoipa::path(
    get, path = "/api/keys/{id}", tag = "keys", operation_id = "read_key", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The key's id, `key_` and 26 characters", example = "key_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The record", body = Key),
        KeyRefused,
    )
)]
async fn read(
    State(state): State<KeysState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
) -> Answer<Key> {
    Ok(Json(state.administered(&caller, &id).await?))
}

/// Revoke a key
///
/// The key is refused from now on, and its open streams end. Revoking it again returns the same record. A key cannot
/// revoke one that has more scopes.
#[utoipa::path(
    delete, path = "/api/keys/{id}", tag = "keys", operation_id = "revoke_key", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The key's id, `key_` and 26 characters", example = "key_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The record, with `revoked_at`", body = Key),
        KeyRefused,
    )
)]
async fn revoke(
    State(state): State<KeysState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
) -> Answer<Key> {
    let key = state.administered(&caller, &id).await?;
    let command = RevokeKey {
        account: key.account,
        id: key.id,
        at: Timestamp::now(),
        request_id: Some(call.id.as_str().to_owned()),
    };
    Ok(Json(state.store.revoke_key(command).await?.key))
}

/// Rotate a key
///
/// Creates a new key with the same properties, which takes over the name. The old key, which now has `rotated_at`,
/// stays valid until it is revoked. The new key itself is only in this answer. A key cannot rotate one that has more
/// scopes.
///
/// This operation needs the key itself: a session is refused.
#[utoipa::path(
    post, path = "/api/keys/{id}/rotate", tag = "keys", operation_id = "rotate_key", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The key's id, `key_` and 26 characters", example = "key_01jv0000000000000000000000")),
    request_body(content = inline(Option<RotateKey>), example = json!({"expires_at": null})),
    responses(
        (status = 201, description = "The new key and its record", body = CreatedKey),
        RotateRefused,
    )
)]
async fn rotate(
    State(state): State<KeysState>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(request): Body<RotateKey>,
) -> Created<CreatedKey> {
    caller.require_key_itself()?;
    let at = Timestamp::now();
    check_expiry(request.expires_at.flatten(), at)?;
    let old = state.store.key(caller.account.id, key_id(&id)?).await?.key;
    let expires_at = check_rotation(&old, &request, &caller.key.scopes, at)?;
    let secret = KeySecret::from_random(old.environment, random::bytes()?);
    let record = state.store.rotate_key(skep_store::RotateKey {
        account: old.account,
        id: old.id,
        hash: secret.hash(),
        prefix: secret.prefix().to_owned(),
        expires_at,
        at,
        request_id: Some(call.id.as_str().to_owned()),
    });
    let record = record.await?;
    created(CreatedKey { key: secret.expose().to_owned(), record: record.key })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RevokeAll {
    /// Must be `true`, so that a truncated path does not revoke all keys.
    #[param(required = true, example = true)]
    all: Option<bool>,
    /// Whether to revoke the calling key too; default false.
    own: Option<bool>,
    /// The id of the account, which needs the scope `server:admin`. Default: the account of the caller.
    #[param(inline)]
    account: Option<AccountId>,
}

/// Revoke all keys
///
/// Revokes all keys of the account except the calling one, which `own=true` revokes too, and those with scopes that the
/// calling key lacks. They are refused from now on, and their open streams end.
#[utoipa::path(
    delete, path = "/api/keys", tag = "keys", operation_id = "revoke_all_keys", security(("bearer" = ["admin"])),
    params(RevokeAll),
    responses(
        (status = 200, description = "The numbers of keys that were revoked and kept", body = RevokedKeys, example = json!({"revoked": 3, "kept": 0})),
        AccountRefused,
    )
)]
async fn revoke_all(
    State(state): State<KeysState>,
    caller: Caller<Admin>,
    Query(query): Query<RevokeAll>,
    call: RequestInfo,
) -> Answer<RevokedKeys> {
    if query.account.is_some() {
        caller.require_scope(Scope::ServerAdmin)?;
    }
    if query.all != Some(true) {
        let message = "to revoke all keys, confirm it by `all=true`; to revoke one, name its id in the path";
        return Err(Refusal::new(ErrorCode::MissingParameter, message));
    }
    let account = state.account(&caller, query.account).await?;
    call.audit.set_resource(account.id);
    let kept_key = (query.own != Some(true)).then_some(caller.key.id);
    let revoked = state.store.revoke_all_keys(RevokeAllKeys {
        account: account.id,
        scopes: caller.key.scopes.clone(),
        except: kept_key,
        at: Timestamp::now(),
        request_id: Some(call.id.as_str().to_owned()),
    });
    Ok(Json(revoked.await?))
}

/// A malformed id gets the same error as an unknown key.
fn key_id(text: &str) -> Result<KeyId, Failure> {
    text.parse().map_err(|_| {
        let message = format!("no key `{text}`; list the account's keys to see their ids");
        Failure::new(ErrorCode::UnknownKey, message)
    })
}
