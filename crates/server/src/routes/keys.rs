//! `/api/keys`: lists, creates, reads, rotates and revokes keys.

use std::sync::Arc;

use jiff::Timestamp;
use skep_accounts::{
    GrantContext, KeyGrant, KeySecret, check_administration, check_expiry, check_rotation, grant,
};
use skep_api::{
    AccountId, ErrorCode, KeyId, Scope, VmId,
    keys::{
        CreateKey, CreatedKey, Key, KeyList, ListKeys, ReadKey, RevokeAllKeys, RevokeKey, RevokedKeys,
        RotateKey,
    },
};
use skep_store::{Account, NewKey, Store};

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
    page,
};
use crate::{auth::Identity, error::Refusal, extract::parse_vm, random, swarm_handle::SwarmHandle};

#[derive(Clone)]
pub(crate) struct KeysState {
    pub store: Arc<dyn Store>,
    /// Used to look up the VM to which a key is bound.
    pub vms: SwarmHandle,
}

pub(crate) fn routes(state: &KeysState) -> Routes {
    endpoints![state; ListKeys, CreateKey, RevokeAllKeys, ReadKey, RevokeKey, RotateKey]
}

impl Handle<KeysState> for ListKeys {
    async fn handle(self, state: KeysState, Request { caller, .. }: Request<()>) -> Result<KeyList, Refusal> {
        let (limit, before) = page::check(self.limit, self.cursor.as_deref())?;
        let (account, scopes) = (caller.account.id, caller.key.scopes.clone());
        let page = state.store.list_keys(skep_store::ListKeys { account, scopes, limit, before }).await?;
        Ok(KeyList {
            keys: page.keys.into_iter().map(|record| record.key).collect(),
            next_cursor: page.next.map(|id| id.to_string()),
        })
    }
}

impl Handle<KeysState> for CreateKey {
    async fn handle(self, state: KeysState, request: Request<()>) -> Result<CreatedKey, Refusal> {
        let caller = &request.caller;
        caller.require_key_itself()?;
        let now = Timestamp::now();
        let creator = &caller.key.scopes;
        if self.account.is_some() {
            caller.require_scope(Scope::ServerAdmin)?;
        }
        // Before the account is looked up, so that an invalid request is reported first.
        grant(&self, GrantContext { account: &caller.account.name, creator }, now)?;
        let account = state.account(caller, self.account).await?;
        let granted = grant(&self, GrantContext { account: &account.name, creator }, now)?;
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
            request_id: Some(request.id().to_owned()),
        });
        let record = record.await?;
        request.info.audit.set_resource(record.key.id);
        if let Err(refusal) = state.admit_vm(&record.key).await {
            state.revoke_unseen(&record.key, request.id()).await;
            return Err(refusal);
        }
        Ok(CreatedKey { key: secret.expose().to_owned(), record: record.key })
    }
}

impl KeysState {
    /// A key of the caller's account that has no scopes beyond those of the caller.
    async fn administered(&self, caller: &Identity, id: KeyId) -> Result<Key, Refusal> {
        let key = self.store.key(caller.account.id, id).await?.key;
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
    async fn revoke_unseen(&self, key: &Key, request_id: &str) {
        let (id, request_id) = (key.id, Some(request_id.to_owned()));
        let command = skep_store::RevokeKey { account: key.account, id, at: Timestamp::now(), request_id };
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

impl Handle<KeysState> for ReadKey {
    async fn handle(self, state: KeysState, request: Request<KeyId>) -> Result<Key, Refusal> {
        state.administered(&request.caller, request.path()?).await
    }
}

impl Handle<KeysState> for RevokeKey {
    async fn handle(self, state: KeysState, request: Request<KeyId>) -> Result<Key, Refusal> {
        let key = state.administered(&request.caller, request.path()?).await?;
        let command = skep_store::RevokeKey {
            account: key.account,
            id: key.id,
            at: Timestamp::now(),
            request_id: Some(request.id().to_owned()),
        };
        Ok(state.store.revoke_key(command).await?.key)
    }
}

impl Handle<KeysState> for RotateKey {
    async fn handle(self, state: KeysState, request: Request<KeyId>) -> Result<CreatedKey, Refusal> {
        let caller = &request.caller;
        caller.require_key_itself()?;
        let at = Timestamp::now();
        check_expiry(self.expires_at.flatten(), at)?;
        let old = state.store.key(caller.account.id, request.path()?).await?.key;
        let expires_at = check_rotation(&old, &self, &caller.key.scopes, at)?;
        let secret = KeySecret::from_random(old.environment, random::bytes()?);
        let record = state.store.rotate_key(skep_store::RotateKey {
            account: old.account,
            id: old.id,
            hash: secret.hash(),
            prefix: secret.prefix().to_owned(),
            expires_at,
            at,
            request_id: Some(request.id().to_owned()),
        });
        let record = record.await?;
        Ok(CreatedKey { key: secret.expose().to_owned(), record: record.key })
    }
}

impl Handle<KeysState> for RevokeAllKeys {
    async fn handle(self, state: KeysState, request: Request<()>) -> Result<RevokedKeys, Refusal> {
        let caller = &request.caller;
        if self.account.is_some() {
            caller.require_scope(Scope::ServerAdmin)?;
        }
        if !self.all {
            let message =
                "to revoke all keys, confirm it by `all=true`; to revoke one, name its id in the path";
            return Err(Refusal::new(ErrorCode::MissingParameter, message));
        }
        let account = state.account(caller, self.account).await?;
        request.info.audit.set_resource(account.id);
        let kept_key = (!self.own).then_some(caller.key.id);
        let revoked = state.store.revoke_all_keys(skep_store::RevokeAllKeys {
            account: account.id,
            scopes: caller.key.scopes.clone(),
            except: kept_key,
            at: Timestamp::now(),
            request_id: Some(request.id().to_owned()),
        });
        Ok(revoked.await?)
    }
}
