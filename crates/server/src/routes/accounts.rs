//! `/api/accounts`: lists, creates, reads, changes and deletes accounts.

use std::{sync::Arc, time::Duration};

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_accounts::{check_account, check_account_change, check_can_set_roots};
use skep_api::{
    AccountId, ErrorCode, Failure, Scope,
    accounts::{Account, AccountList, ChangeAccount, CreateAccount, DeletedAccount},
};
use skep_store::{DeleteAccount, ListAccounts, RevokeAllKeys, Store};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Created, Routes, created, page::Page};
use crate::{
    body::Body,
    door::address,
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, Segment, ServerAdmin},
    json::Json,
    openapi::refusals::{AccountRefused, ChangeAccountRefused, CreateAccountRefused, DeleteAccountRefused},
    swarm_handle::SwarmHandle,
    workspace_disk::WorkspaceDisk,
    workspaces::Workspaces,
};

/// Attempts to delete an account with `force`, and the pause between them: boots in progress may still add VMs to it.
const DELETE_ATTEMPTS: u32 = 100;
const RETRY_DELAY: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct AccountsState {
    pub store: Arc<dyn Store>,
    pub vms: SwarmHandle,
    pub workspaces: Workspaces,
    pub workspace_disk: WorkspaceDisk,
}

pub(crate) fn routes(state: AccountsState) -> Routes {
    vec![routes!(list, create).with_state(state.clone()), routes!(read, change, delete).with_state(state)]
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
    State(state): State<AccountsState>,
    _: Caller<ServerAdmin>,
    Query(page): Query<Page<AccountId>>,
) -> Answer<AccountList> {
    let (limit, before) = page.read()?;
    let page = state.store.list_accounts(ListAccounts { limit, before }).await?;
    Ok(Json(AccountList {
        accounts: page.accounts.into_iter().map(to_api).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    }))
}

/// Create an account
///
/// An account is a tenant with its own VMs, keys and files. `POST /api/keys` with `account` creates its first key.
/// Without `roots`, the server creates an empty folder for it.
#[utoipa::path(
    post, path = "/api/accounts", tag = "accounts", operation_id = "create_account",
    security(("bearer" = ["server:admin"])),
    request_body(content = CreateAccount, example = json!({
        "name": "acme", "allowed_ips": ["192.0.2.0/24"], "max_vms": 10, "max_memory_mb": 4096,
        "max_disk_mb": 20_480
    })),
    responses(
        (status = 201, description = "The record", body = Account),
        CreateAccountRefused,
    )
)]
async fn create(
    State(state): State<AccountsState>,
    _: Caller<ServerAdmin>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(request): Body<CreateAccount>,
) -> Created<Account> {
    let granted = check_account(&request)?;
    call.audit.set_egress(request.egress.as_ref());
    let roots = state.roots_of_new(&granted.name, granted.roots).await?;
    let made = state.store.create_account(skep_store::CreateAccount {
        name: granted.name,
        roots,
        allowed_ips: granted.allowed_ips,
        limits: granted.limits,
        egress: granted.egress,
        git_relay: granted.git_relay,
        at: Timestamp::now(),
    });
    let made = made.await?;
    call.audit.set_resource(made.id);
    created(to_api(made))
}

/// Read an account
///
/// Returns its record: roots, networks and quotas.
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
    State(state): State<AccountsState>,
    _: Caller<ServerAdmin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
) -> Answer<Account> {
    Ok(Json(to_api(state.store.account(account_id(&id)?).await?)))
}

/// Change an account
///
/// Absent fields stay unchanged. The change applies from the account's next request on; VMs above a smaller quota keep
/// running. The roots of the account `default` are set by `skep serve --root`.
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
    State(state): State<AccountsState>,
    caller: Caller<ServerAdmin>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(request): Body<ChangeAccount>,
) -> Answer<Account> {
    let change = check_account_change(&request)?;
    call.audit.set_egress(change.egress.as_ref());
    if let (Some(allowed_ips), true) = (&change.allowed_ips, id == caller.account.id.to_string()) {
        check_own_address(allowed_ips, &caller)?;
    }
    let account = state.store.account(account_id(&id)?).await?;
    let roots = match change.roots {
        None => None,
        Some(roots) => {
            check_can_set_roots(&account.name)?;
            Some(state.check_roots(&account.name, roots).await?)
        }
    };
    let changed = state.store.change_account(skep_store::ChangeAccount {
        account: account.id,
        roots,
        allowed_ips: change.allowed_ips,
        max_vms: change.max_vms,
        max_memory_mb: change.max_memory_mb,
        max_paused_vms: change.max_paused_vms,
        max_disk_mb: change.max_disk_mb,
        egress: change.egress,
        git_relay: change.git_relay,
    });
    let changed = changed.await?;
    state.workspace_disk.set_stale(changed.id);
    Ok(Json(to_api(changed)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Deletion {
    /// Whether to end the VMs of the account too; default false.
    force: Option<bool>,
}

/// Delete an account
///
/// Revokes its keys, which ends their open streams, and frees its name. The files in its roots are kept. An account
/// with running VMs is deleted only with `force=true`, which ends them. The account `default` cannot be deleted.
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
    State(state): State<AccountsState>,
    _: Caller<ServerAdmin>,
    Segment(id): Segment,
    Query(deletion): Query<Deletion>,
    call: RequestInfo,
) -> Answer<DeletedAccount> {
    let id = account_id(&id)?;
    let request_id = call.id.as_str().to_owned();
    match state.delete(id, &request_id).await {
        Err(error) if error.code() == ErrorCode::AccountInUse && deletion.force == Some(true) => {
            // In a separate task, so that a disconnected caller does not leave a half-deleted account behind.
            let done = tokio::spawn(async move { state.delete_with_vms(id, &request_id).await }).await;
            Ok(Json(done.map_err(|error| Refusal::internal(error.to_string()))??))
        }
        outcome => Ok(Json(outcome?)),
    }
}

impl AccountsState {
    /// The roots of a new account: the given ones, or a new folder.
    async fn roots_of_new(&self, name: &str, named: Option<Vec<String>>) -> Result<Vec<String>, Refusal> {
        if let Some(roots) = named {
            return self.check_roots(name, roots).await;
        }
        // A taken name is reported before a problem with the folder of that name.
        match self.store.account_by_name(name).await {
            Ok(_) => Err(skep_store::Error::AccountNameTaken { name: name.to_owned() }.into()),
            Err(error) if error.code() == ErrorCode::UnknownAccount => {
                self.check_roots(name, vec![self.workspaces.create(name).await?]).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that an account may have these roots, and resolves their paths.
    async fn check_roots(&self, name: &str, roots: Vec<String>) -> Result<Vec<String>, Refusal> {
        let others = self.store.roots_of_other_accounts(name).await?;
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
        // Keys first: afterwards only boots in progress can still add VMs.
        let (at, request) = (Timestamp::now(), Some(request_id.to_owned()));
        let keys = self.store.revoke_all_keys(RevokeAllKeys {
            account,
            scopes: Scope::ALL.to_vec(),
            except: None,
            at,
            request_id: request,
        });
        let keys_revoked = keys.await?.revoked;
        let mut vms_ended = 0;
        for attempt in 1.. {
            vms_ended += swarm.cleanup(&account, request_id).await?;
            match self.delete(account, request_id).await {
                Err(error) if error.code() == ErrorCode::AccountInUse && attempt < DELETE_ATTEMPTS => {
                    tokio::time::sleep(RETRY_DELAY).await;
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

/// Refuses a change by which the caller would lock itself out.
fn check_own_address(allowed_ips: &[String], caller: &Caller<ServerAdmin>) -> Result<(), Failure> {
    address::check(allowed_ips, caller.peer).map_err(|_| {
        let peer = caller.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_canonical().to_string());
        let message = format!(
            "`allowed_ips` does not contain the address of this call, {peer}, which would be locked out; \
            add it"
        );
        Failure::new(ErrorCode::InvalidValue, message)
    })
}

/// A malformed id gets the same error as an unknown account.
fn account_id(text: &str) -> Result<AccountId, skep_store::Error> {
    text.parse().map_err(|_| skep_store::Error::UnknownAccount { account: text.to_owned() })
}

fn to_api(account: skep_store::Account) -> Account {
    Account {
        id: account.id,
        name: account.name,
        roots: account.roots,
        allowed_ips: account.allowed_ips,
        max_vms: account.limits.max_vms,
        max_memory_mb: account.limits.max_memory_mb,
        max_paused_vms: account.limits.max_paused_vms,
        max_disk_mb: account.limits.max_disk_mb,
        egress: account.egress,
        git_relay: account.git_relay,
        created_at: account.created_at,
    }
}
