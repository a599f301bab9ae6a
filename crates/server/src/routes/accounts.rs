//! `/api/accounts`: lists, creates, reads, changes and deletes accounts.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_accounts::{check_account, check_account_change, check_can_set_roots};
use skep_api::{
    AccountId, ErrorCode, Failure, Scope,
    accounts::{
        Account, AccountList, ChangeAccount, CreateAccount, DeleteAccount, DeletedAccount, ListAccounts,
        ReadAccount,
    },
};
use skep_store::Store;

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
    page,
};
use crate::{
    auth::Identity, door::address, error::Refusal, swarm_handle::SwarmHandle, workspace_disk::WorkspaceDisk,
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

pub(crate) fn routes(state: &AccountsState) -> Routes {
    endpoints![state; ListAccounts, CreateAccount, ReadAccount, ChangeAccount, DeleteAccount]
}

impl Handle<AccountsState> for ListAccounts {
    async fn handle(self, state: AccountsState, _: Request<()>) -> Result<AccountList, Refusal> {
        let (limit, before) = page::check(self.limit, self.cursor.as_deref())?;
        let page = state.store.list_accounts(skep_store::ListAccounts { limit, before }).await?;
        Ok(AccountList {
            accounts: page.accounts.into_iter().map(to_api).collect(),
            next_cursor: page.next.map(|id| id.to_string()),
        })
    }
}

impl Handle<AccountsState> for CreateAccount {
    async fn handle(self, state: AccountsState, request: Request<()>) -> Result<Account, Refusal> {
        let granted = check_account(&self)?;
        let audit = &request.info.audit;
        audit.set_egress(self.egress.as_ref());
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
        audit.set_resource(made.id);
        Ok(to_api(made))
    }
}

impl Handle<AccountsState> for ReadAccount {
    async fn handle(self, state: AccountsState, request: Request<AccountId>) -> Result<Account, Refusal> {
        Ok(to_api(state.store.account(request.path()?).await?))
    }
}

impl Handle<AccountsState> for ChangeAccount {
    async fn handle(self, state: AccountsState, request: Request<AccountId>) -> Result<Account, Refusal> {
        let change = check_account_change(&self)?;
        request.info.audit.set_egress(change.egress.as_ref());
        let (caller, id) = (&request.caller, request.path()?);
        if let (Some(allowed_ips), true) = (&change.allowed_ips, id == caller.account.id) {
            check_own_address(allowed_ips, caller)?;
        }
        let account = state.store.account(id).await?;
        let roots = match change.roots {
            None => None,
            Some(roots) => {
                check_can_set_roots(&account.name)?;
                Some(state.check_roots(&account.name, roots).await?)
            }
        };
        let changed = state.store.change_account(skep_store::ChangeAccount {
            account: id,
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
        state.workspace_disk.set_stale(id);
        Ok(to_api(changed))
    }
}

impl Handle<AccountsState> for DeleteAccount {
    async fn handle(
        self,
        state: AccountsState,
        request: Request<AccountId>,
    ) -> Result<DeletedAccount, Refusal> {
        let (id, request_id) = (request.path()?, request.id().to_owned());
        match state.delete(id, &request_id).await {
            Err(error) if error.code() == ErrorCode::AccountInUse && self.force => {
                // In a separate task, so that a disconnected caller does not leave a half-deleted account behind.
                let done = tokio::spawn(async move { state.delete_with_vms(id, &request_id).await }).await;
                done.map_err(|error| Refusal::internal(error.to_string()))?
            }
            outcome => Ok(outcome?),
        }
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
        let deleted =
            self.store.delete_account(skep_store::DeleteAccount { account, at, request_id }).await?;
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
        let keys = self.store.revoke_all_keys(skep_store::RevokeAllKeys {
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
fn check_own_address(allowed_ips: &[String], caller: &Identity) -> Result<(), Failure> {
    address::check(allowed_ips, caller.peer).map_err(|_| {
        let peer = caller.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_canonical().to_string());
        let message = format!(
            "`allowed_ips` does not contain the address of this call, {peer}, which would be locked out; \
            add it"
        );
        Failure::new(ErrorCode::InvalidValue, message)
    })
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
