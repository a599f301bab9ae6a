//! `/api/accounts`: list, create, read, change, delete.

use std::{sync::Arc, time::Duration};

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_accounts::{account, account_change, may_set_roots};
use skep_api::{
    AccountId, ErrorCode, Failure,
    accounts::{Account, AccountList, ChangeAccount, CreateAccount, DeletedAccount},
};
use skep_store::{DeleteAccount, ListAccounts, RevokeAllKeys, Store};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Created, Routes, created, page::Page};
use crate::{
    address,
    body::Body,
    error::Refusal,
    extract::{Call, Caller, NoParameters, Query, Segment, ServerAdmin},
    json::Json,
    openapi::refusals::{AccountRefused, ChangeAccountRefused, CreateAccountRefused, DeleteAccountRefused},
    vms::Vms,
    workspaces::Workspaces,
};

/// How often an account is asked to go whose boots under way come on record meanwhile, and the pause between.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// What these routes use.
#[derive(Clone)]
pub(crate) struct AccountDesk {
    /// Where accounts are kept.
    pub store: Arc<dyn Store>,
    /// Where the VMs of an account are ended.
    pub vms: Vms,
    /// Where its folder is made.
    pub workspaces: Workspaces,
}

/// The routes of this file.
pub(crate) fn routes(desk: AccountDesk) -> Routes {
    vec![routes!(list, create).with_state(desk.clone()), routes!(read, change, delete).with_state(desk)]
}

/// List accounts
///
/// The accounts of this server, newest first.
#[utoipa::path(
    get, path = "/api/accounts", tag = "accounts", operation_id = "list_accounts", params(Page<AccountId>),
    security(("bearer" = ["server:admin"])),
    responses((status = 200, description = "A page of accounts", body = AccountList))
)]
async fn list(
    State(desk): State<AccountDesk>,
    _: Caller<ServerAdmin>,
    Query(page): Query<Page<AccountId>>,
) -> Answer<AccountList> {
    let (limit, before) = page.read()?;
    let page = desk.store.list_accounts(ListAccounts { limit, before }).await?;
    Ok(Json(AccountList {
        accounts: page.accounts.into_iter().map(shown).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    }))
}

/// Create an account
///
/// A tenant with VMs, keys and files of its own. Its first key is made by `POST /api/keys` with `account`. Where it names
/// no `roots`, the server makes it an empty folder.
#[utoipa::path(
    post, path = "/api/accounts", tag = "accounts", operation_id = "create_account",
    security(("bearer" = ["server:admin"])),
    request_body(content = CreateAccount, example = json!({
        "name": "acme", "allowed_ips": ["192.0.2.0/24"], "max_vms": 10, "max_memory_mb": 4096
    })),
    responses(
        (status = 201, description = "The record", body = Account),
        CreateAccountRefused,
    )
)]
async fn create(
    State(desk): State<AccountDesk>,
    _: Caller<ServerAdmin>,
    _: Query<NoParameters>,
    call: Call,
    Body(request): Body<CreateAccount>,
) -> Created<Account> {
    let granted = account(&request)?;
    let roots = desk.roots_of_new(&granted.name, granted.roots).await?;
    let made = desk.store.create_account(skep_store::CreateAccount {
        name: granted.name,
        roots,
        allowed_ips: granted.allowed_ips,
        limits: granted.limits,
        at: Timestamp::now(),
    });
    let made = made.await?;
    call.trail.acts_on(made.id);
    created(shown(made))
}

/// Read an account
///
/// Its record: roots, networks and quotas.
#[utoipa::path(
    get, path = "/api/accounts/{id}", tag = "accounts", operation_id = "read_account",
    security(("bearer" = ["server:admin"])),
    params(("id" = String, Path, description = "The account's id, `acc_` and 26 characters", example = "acc_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The record", body = Account),
        AccountRefused,
    )
)]
async fn read(
    State(desk): State<AccountDesk>,
    _: Caller<ServerAdmin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
) -> Answer<Account> {
    Ok(Json(shown(desk.store.account(account_id(&id)?).await?)))
}

/// Change an account
///
/// What is absent stays. It acts on the account's next request; VMs beyond a smaller quota live on. The roots of `default`
/// are those of `skep serve --root`.
#[utoipa::path(
    patch, path = "/api/accounts/{id}", tag = "accounts", operation_id = "change_account",
    security(("bearer" = ["server:admin"])),
    params(("id" = String, Path, description = "The account's id, `acc_` and 26 characters", example = "acc_01jv0000000000000000000000")),
    request_body(content = inline(Option<ChangeAccount>), example = json!({"max_vms": 20, "allowed_ips": []})),
    responses(
        (status = 200, description = "The record", body = Account),
        ChangeAccountRefused,
    )
)]
async fn change(
    State(desk): State<AccountDesk>,
    caller: Caller<ServerAdmin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    Body(request): Body<ChangeAccount>,
) -> Answer<Account> {
    let change = account_change(&request)?;
    if let (Some(allowed_ips), true) = (&change.allowed_ips, id == caller.account.id.to_string()) {
        check_own_address(allowed_ips, &caller)?;
    }
    let account = desk.store.account(account_id(&id)?).await?;
    let roots = match change.roots {
        None => None,
        Some(roots) => {
            may_set_roots(&account.name)?;
            Some(desk.checked(&account.name, roots).await?)
        }
    };
    let changed = desk.store.change_account(skep_store::ChangeAccount {
        account: account.id,
        roots,
        allowed_ips: change.allowed_ips,
        max_vms: change.max_vms,
        max_memory_mb: change.max_memory_mb,
    });
    Ok(Json(shown(changed.await?)))
}

/// How an account is deleted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Deletion {
    /// Whether the account's VMs are ended too; false unless given.
    force: Option<bool>,
}

/// Delete an account
///
/// Its keys are revoked, their open streams end, and its name is free again. Files in its roots stay where they are. An
/// account whose VMs live is deleted with `force=true` only, which ends them. The account `default` stays.
#[utoipa::path(
    delete, path = "/api/accounts/{id}", tag = "accounts", operation_id = "delete_account",
    security(("bearer" = ["server:admin"])),
    params(("id" = String, Path, description = "The account's id, `acc_` and 26 characters", example = "acc_01jv0000000000000000000000"), Deletion),
    responses(
        (status = 200, description = "It was deleted", body = DeletedAccount, example = json!({
            "id": "acc_01jv0000000000000000000000", "name": "acme", "deleted": true, "keys_revoked": 2, "vms_ended": 0,
            "kept_roots": ["/var/lib/skep/workspaces/acme"]
        })),
        DeleteAccountRefused,
    )
)]
async fn delete(
    State(desk): State<AccountDesk>,
    _: Caller<ServerAdmin>,
    Segment(id): Segment,
    Query(deletion): Query<Deletion>,
    call: Call,
) -> Answer<DeletedAccount> {
    let id = account_id(&id)?;
    let request_id = call.id.as_str().to_owned();
    match desk.delete(id, &request_id).await {
        Err(error) if error.code() == ErrorCode::AccountInUse && deletion.force == Some(true) => {
            // In a task of its own: a caller that goes away must not leave half of an account behind.
            let done = tokio::spawn(async move { desk.delete_with_vms(id, &request_id).await }).await;
            Ok(Json(done.map_err(|error| Refusal::internal(error.to_string()))??))
        }
        outcome => Ok(Json(outcome?)),
    }
}

impl AccountDesk {
    /// The roots of a new account: those that it names, or a folder of its own.
    async fn roots_of_new(&self, name: &str, named: Option<Vec<String>>) -> Result<Vec<String>, Refusal> {
        if let Some(roots) = named {
            return self.checked(name, roots).await;
        }
        // Whose folder it is comes before what lies in it.
        match self.store.account_by_name(name).await {
            Ok(_) => Err(skep_store::Error::AccountNameTaken { name: name.to_owned() }.into()),
            Err(error) if error.code() == ErrorCode::UnknownAccount => {
                self.checked(name, vec![self.workspaces.make(name).await?]).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The resolved paths of roots that this account may have.
    async fn checked(&self, name: &str, roots: Vec<String>) -> Result<Vec<String>, Refusal> {
        let others = self.store.roots_of_others(name).await?;
        self.workspaces.check(roots, others).await
    }

    async fn delete(&self, account: AccountId, request_id: &str) -> skep_store::Result<DeletedAccount> {
        let (at, request_id) = (Timestamp::now(), Some(request_id.to_owned()));
        let deleted = self.store.delete_account(DeleteAccount { account, at, request_id }).await?;
        Ok(DeletedAccount {
            id: account,
            name: deleted.account.name,
            deleted: true,
            keys_revoked: deleted.keys_revoked,
            vms_ended: 0,
            kept_roots: deleted.account.roots,
        })
    }

    async fn delete_with_vms(&self, account: AccountId, request_id: &str) -> Result<DeletedAccount, Refusal> {
        let swarm = self.vms.swarm().await?;
        // First the keys: then only boots that are under way can come on record yet.
        let (at, words) = (Timestamp::now(), Some(request_id.to_owned()));
        let keys = self.store.revoke_all_keys(RevokeAllKeys { account, except: None, at, request_id: words });
        let keys_revoked = keys.await?;
        let mut vms_ended = 0;
        for attempt in 1.. {
            vms_ended += swarm.cleanup(&account, request_id).await?;
            match self.delete(account, request_id).await {
                Err(error) if error.code() == ErrorCode::AccountInUse && attempt < ATTEMPTS => {
                    tokio::time::sleep(PAUSE).await;
                }
                outcome => {
                    let deleted = outcome?;
                    let keys_revoked = keys_revoked + deleted.keys_revoked;
                    return Ok(DeletedAccount { keys_revoked, vms_ended, ..deleted });
                }
            }
        }
        Err(Refusal::internal("an account's end was never answered"))
    }
}

/// Whoever locks itself out could not let itself in again.
fn check_own_address(allowed_ips: &[String], caller: &Caller<ServerAdmin>) -> Result<(), Failure> {
    address::check(allowed_ips, caller.peer).map_err(|_| {
        let peer = caller.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_canonical().to_string());
        let message = format!(
            "`allowed_ips` does not hold the address that this call comes from, {peer}: nobody here could call any more; \
             add it"
        );
        Failure::new(ErrorCode::InvalidValue, message)
    })
}

/// A text that is no id names no account: the store's own words for that.
fn account_id(text: &str) -> Result<AccountId, skep_store::Error> {
    text.parse().map_err(|_| skep_store::Error::UnknownAccount { account: text.to_owned() })
}

fn shown(account: skep_store::Account) -> Account {
    Account {
        id: account.id,
        name: account.name,
        roots: account.roots,
        allowed_ips: account.allowed_ips,
        max_vms: account.limits.max_vms,
        max_memory_mb: account.limits.max_memory_mb,
        created_at: account.created_at,
    }
}
