//! `/api/keys`: list, create, read, rotate, revoke.

use std::sync::Arc;

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_accounts::{KeyGrant, KeySecret, Target, check_expiry, grant, rotation};
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
    extract::{Admin, Call, Caller, NoParameters, Query, Segment, vm_of},
    json::Json,
    openapi::refusals::{AccountRefused, CreateKeyRefused, KeyRefused, RotateRefused},
    random,
    vms::Vms,
};

/// What these routes use.
#[derive(Clone)]
pub(crate) struct KeyDesk {
    /// Where keys are kept.
    pub store: Arc<dyn Store>,
    /// Where a VM is looked up that a key shall be bound to.
    pub vms: Vms,
}

/// The routes of this file.
pub(crate) fn routes(desk: KeyDesk) -> Routes {
    vec![
        routes!(list, create, revoke_all).with_state(desk.clone()),
        routes!(read, revoke).with_state(desk.clone()),
        routes!(rotate).with_state(desk),
    ]
}

/// List keys
///
/// The account's keys, revoked ones too, newest first. No answer holds a secret.
#[utoipa::path(
    get, path = "/api/keys", tag = "keys", operation_id = "list_keys", params(Page<KeyId>), security(("bearer" = ["admin"])),
    responses((status = 200, description = "A page of keys", body = KeyList))
)]
async fn list(
    State(desk): State<KeyDesk>,
    caller: Caller<Admin>,
    Query(page): Query<Page<KeyId>>,
) -> Answer<KeyList> {
    let (limit, before) = page.read()?;
    let page = desk.store.list_keys(ListKeys { account: caller.account.id, limit, before }).await?;
    Ok(Json(KeyList {
        keys: page.keys.into_iter().map(|record| record.key).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    }))
}

/// Create a key
///
/// Exactly one of `role` and `scopes`. The key itself is answered this once and kept nowhere. Nobody gives what it does not
/// have itself. With `account` the key is another account's, which needs the scope `server:admin` besides.
#[utoipa::path(
    post, path = "/api/keys", tag = "keys", operation_id = "create_key", security(("bearer" = ["admin"])),
    request_body(content = CreateKey, example = json!({"name": "ci", "role": "agent"})),
    responses(
        (status = 201, description = "The key and its record", body = CreatedKey),
        CreateKeyRefused,
    )
)]
async fn create(
    State(desk): State<KeyDesk>,
    caller: Caller<Admin>,
    _: Query<NoParameters>,
    call: Call,
    Body(request): Body<CreateKey>,
) -> Created<CreatedKey> {
    let now = Timestamp::now();
    let creator = &caller.key.scopes;
    if request.account.is_some() {
        caller.needs(Scope::ServerAdmin)?;
    }
    // Before the account is looked up: what is wrong with the request itself comes first.
    grant(&request, Target { account: &caller.account.name, creator }, now)?;
    let account = desk.account(&caller, request.account).await?;
    let granted = grant(&request, Target { account: &account.name, creator }, now)?;
    let vm = bound_vm(&desk.vms, account.id, &granted).await?;
    let secret = KeySecret::from_random(granted.environment, random::bytes()?);
    let record = desk.store.create_key(NewKey {
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
    if let Some(vm) = vm {
        desk.vms.swarm().await?.admit_to_api(&account.id, vm).await?;
    }
    call.trail.acts_on(record.key.id);
    created(CreatedKey { key: secret.expose().to_owned(), record: record.key })
}

impl KeyDesk {
    /// The account that a request is about: the one that it names, or the caller's own.
    async fn account(&self, caller: &Identity, named: Option<AccountId>) -> Result<Account, Refusal> {
        match named {
            Some(id) if id != caller.account.id => Ok(self.store.account(id).await?),
            _ => Ok(caller.account.clone()),
        }
    }
}

async fn bound_vm(vms: &Vms, account: AccountId, granted: &KeyGrant) -> Result<Option<VmId>, Refusal> {
    let Some(field) = &granted.vm else { return Ok(None) };
    let vm = vm_of(&field.as_text())?;
    Ok(Some(vms.swarm().await?.vm(&account, vm).await?.id))
}

/// Read a key
///
/// Its record, without the secret.
#[utoipa::path(
    get, path = "/api/keys/{id}", tag = "keys", operation_id = "read_key", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The key's id, `key_` and 26 characters", example = "key_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The record", body = Key),
        KeyRefused,
    )
)]
async fn read(
    State(desk): State<KeyDesk>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
) -> Answer<Key> {
    Ok(Json(desk.store.key(caller.account.id, key_id(&id)?).await?.key))
}

/// Revoke a key
///
/// From then on it is refused, and its open streams end. Revoking it again answers the same record.
#[utoipa::path(
    delete, path = "/api/keys/{id}", tag = "keys", operation_id = "revoke_key", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The key's id, `key_` and 26 characters", example = "key_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The record, with `revoked_at`", body = Key),
        KeyRefused,
    )
)]
async fn revoke(
    State(desk): State<KeyDesk>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: Call,
) -> Answer<Key> {
    let command = RevokeKey {
        account: caller.account.id,
        id: key_id(&id)?,
        at: Timestamp::now(),
        request_id: Some(call.id.as_str().to_owned()),
    };
    Ok(Json(desk.store.revoke_key(command).await?.key))
}

/// Rotate a key
///
/// Makes a key like this one, which takes its name. Both are valid, side by side, until the old one is revoked: it is listed
/// with `rotated_at`. The new key itself is answered this once. Nobody rotates a key that may do more than its own.
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
    State(desk): State<KeyDesk>,
    caller: Caller<Admin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: Call,
    Body(request): Body<RotateKey>,
) -> Created<CreatedKey> {
    let at = Timestamp::now();
    check_expiry(request.expires_at.flatten(), at)?;
    let old = desk.store.key(caller.account.id, key_id(&id)?).await?.key;
    let expires_at = rotation(&old, &request, &caller.key.scopes, at)?;
    let secret = KeySecret::from_random(old.environment, random::bytes()?);
    let record = desk.store.rotate_key(skep_store::RotateKey {
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

/// Whose keys are revoked.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RevokeAll {
    /// Must be `true`: nobody revokes all keys by a path that was cut short.
    #[param(required = true, example = true)]
    all: Option<bool>,
    /// Whether the calling key is revoked too; false unless given.
    own: Option<bool>,
    /// The account whose keys they are, by its id, with the scope `server:admin`; the caller's own unless given.
    #[param(inline)]
    account: Option<AccountId>,
}

/// Revoke all keys
///
/// All keys of the account but the one that calls, which `own=true` revokes too. From then on they are refused, and their
/// open streams end.
#[utoipa::path(
    delete, path = "/api/keys", tag = "keys", operation_id = "revoke_all_keys", security(("bearer" = ["admin"])),
    params(RevokeAll),
    responses(
        (status = 200, description = "How many were revoked", body = RevokedKeys, example = json!({"revoked": 3})),
        AccountRefused,
    )
)]
async fn revoke_all(
    State(desk): State<KeyDesk>,
    caller: Caller<Admin>,
    Query(query): Query<RevokeAll>,
    call: Call,
) -> Answer<RevokedKeys> {
    if query.account.is_some() {
        caller.needs(Scope::ServerAdmin)?;
    }
    if query.all != Some(true) {
        let message = "`all=true` is missing: it says that all keys shall be revoked; `DELETE /api/keys/ID` revokes one";
        return Err(Refusal::new(ErrorCode::MissingParameter, message));
    }
    let account = desk.account(&caller, query.account).await?;
    call.trail.acts_on(account.id);
    let spared = (query.own != Some(true)).then_some(caller.key.id);
    let revoked = desk.store.revoke_all_keys(RevokeAllKeys {
        account: account.id,
        except: spared,
        at: Timestamp::now(),
        request_id: Some(call.id.as_str().to_owned()),
    });
    Ok(Json(RevokedKeys { revoked: revoked.await? }))
}

/// A text that is no id names no key: the store's own words for that.
fn key_id(text: &str) -> Result<KeyId, Failure> {
    text.parse().map_err(|_| {
        let message = format!("no key `{text}`; `GET /api/keys` lists those of this account");
        Failure::new(ErrorCode::UnknownKey, message)
    })
}
