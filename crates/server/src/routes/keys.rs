//! `/api/keys`: list, create, read, revoke.

use std::sync::Arc;

use axum::{Json, extract::State};
use jiff::Timestamp;
use serde::Deserialize;
use skep_accounts::{KeyGrant, KeySecret, Target, grant};
use skep_api::{
    ErrorBody, ErrorCode, Failure, KeyId, VmId,
    keys::{CreateKey, CreatedKey, Key, KeyList},
};
use skep_store::{ListKeys, NewKey, RevokeKey, Store};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Created, Routes, created};
use crate::{
    auth::Identity,
    body::Body,
    error::Refusal,
    extract::{Admin, Call, Caller, NoParameters, Query, Segment, vm_of},
    random,
    vms::Vms,
};

/// Keys on a page where the caller names no number.
const DEFAULT_PAGE: u32 = 100;
/// Keys on a page at most.
const LARGEST_PAGE: u32 = 1_000;

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
    vec![routes!(list, create).with_state(desk.clone()), routes!(read, revoke).with_state(desk)]
}

/// The page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Page {
    /// Keys on the page, 1 to 1,000; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List keys
///
/// The account's keys, revoked ones too, newest first. No answer holds a secret.
#[utoipa::path(
    get, path = "/api/keys", tag = "keys", operation_id = "list_keys", params(Page), security(("bearer" = ["admin"])),
    responses((status = 200, description = "A page of keys", body = KeyList))
)]
async fn list(
    State(desk): State<KeyDesk>,
    caller: Caller<Admin>,
    Query(page): Query<Page>,
) -> Answer<KeyList> {
    let limit = page.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        let message = format!("`limit` is {limit}; it must be a whole number from 1 to {LARGEST_PAGE}");
        return Err(Refusal::new(ErrorCode::InvalidValue, message));
    }
    let before = page.cursor.map(|text| text.parse::<KeyId>()).transpose().map_err(|error| {
        Failure::new(ErrorCode::InvalidValue, format!("`cursor` is no `next_cursor` of this list: {error}"))
    })?;
    let page = desk.store.list_keys(ListKeys { account: caller.account.id, limit, before }).await?;
    Ok(Json(KeyList {
        keys: page.keys.into_iter().map(|record| record.key).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    }))
}

/// Create a key
///
/// Exactly one of `role` and `scopes`. The key itself is answered this once and kept nowhere.
#[utoipa::path(
    post, path = "/api/keys", tag = "keys", operation_id = "create_key", security(("bearer" = ["admin"])),
    request_body(content = CreateKey, example = json!({"name": "ci", "role": "agent"})),
    responses(
        (status = 201, description = "The key and its record", body = CreatedKey),
        (status = 404, description = "`vm` is no VM of this account", body = ErrorBody),
        (status = 409, description = "The name belongs to another valid key", body = ErrorBody),
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
    let target = Target { account: &caller.account.name, creator: &caller.key.scopes };
    let granted = grant(&request, target, now)?;
    let vm = bound_vm(&desk.vms, &caller, &granted).await?;
    let secret = KeySecret::from_random(granted.environment, random::bytes()?);
    let record = desk.store.create_key(NewKey {
        account: caller.account.id,
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
    call.trail.acts_on(record.key.id);
    created(CreatedKey { key: secret.expose().to_owned(), record: record.key })
}

async fn bound_vm(vms: &Vms, caller: &Identity, granted: &KeyGrant) -> Result<Option<VmId>, Refusal> {
    let Some(field) = &granted.vm else { return Ok(None) };
    let vm = vm_of(&field.as_text())?;
    Ok(Some(vms.swarm()?.vm(&caller.account.id, vm).await?.id))
}

/// Read a key
///
/// Its record, without the secret.
#[utoipa::path(
    get, path = "/api/keys/{id}", tag = "keys", operation_id = "read_key", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The key's id, `key_` and 26 characters")),
    responses(
        (status = 200, description = "The record", body = Key),
        (status = 404, description = "No such key of this account", body = ErrorBody),
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
    params(("id" = String, Path, description = "The key's id, `key_` and 26 characters")),
    responses(
        (status = 200, description = "The record, with `revoked_at`", body = Key),
        (status = 404, description = "No such key of this account", body = ErrorBody),
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

/// A text that is no id names no key: the store's own words for that.
fn key_id(text: &str) -> Result<KeyId, Failure> {
    text.parse().map_err(|_| {
        let message = format!("no key `{text}`; `GET /api/keys` lists those of this account");
        Failure::new(ErrorCode::UnknownKey, message)
    })
}
