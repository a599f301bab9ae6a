//! Operations of `skep keys`, by the API or directly in a store on this machine.

use std::{fs, path::Path};

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use skep_accounts::{GrantContext, KeySecret, check_rotation, grant};
use skep_api::{
    AccountId, ErrorCode, KeyId, Scope, VmId, VmRef,
    keys::{
        CreateKey, CreatedKey, IdentifyCaller, Key, ListKeys, RevokeAllKeys, RevokeKey, RevokedKeys,
        RotateKey,
    },
};
use skep_client::Client;
use skep_store::{Account, AccountStore, KeyStore, NewKey, SqliteSettings, SqliteStore, VmBooted, VmStore};

use crate::{random, verbs::account};

/// Page size when keys are listed from the store.
const PAGE: u32 = 500;

pub(super) enum Backend {
    Api {
        client: Client,
        /// The account to work on, with its name; `None` for the account of the key in use.
        other: Option<(AccountId, String)>,
    },
    Store {
        store: Box<SqliteStore>,
        account: Box<Account>,
        /// The key in DATA_DIR/admin.key, which `revoke --all` spares.
        own: Option<KeySecret>,
    },
}

impl Backend {
    /// # Errors
    /// The server does not answer, refuses the key, or has no such account.
    pub(super) async fn by_api(client: Client, account: Option<&str>) -> anyhow::Result<Self> {
        let Some(account) = account else { return Ok(Self::Api { client, other: None }) };
        let own = client.run(&IdentifyCaller {}).await?.value.account;
        if own.name == account || own.id.to_string() == account {
            return Ok(Self::Api { client, other: None });
        }
        let id = account::find(&client, account).await?;
        Ok(Self::Api { client, other: Some((id, account.to_owned())) })
    }

    /// # Errors
    /// The store cannot be opened, or has no such account.
    pub(super) async fn in_store(
        store: &Path,
        account: &str,
        own: Option<KeySecret>,
    ) -> anyhow::Result<Self> {
        let store = SqliteStore::open(SqliteSettings::at(store.to_owned())).await?;
        let found = match account.parse::<AccountId>() {
            Ok(id) => store.account(id).await,
            Err(_) => store.account_by_name(account).await,
        };
        let account = found.map_err(|error| match error.code() {
            ErrorCode::UnknownAccount => anyhow!("no account `{account}`; `skep account list` lists them"),
            _ => error.into(),
        })?;
        Ok(Self::Store { store: Box::new(store), account: Box::new(account), own })
    }

    pub(super) async fn create(&self, mut request: CreateKey) -> anyhow::Result<CreatedKey> {
        let (store, account) = match self {
            Self::Api { client, other } => {
                request.account = other.as_ref().map(|(id, _)| *id);
                return Ok(client.run(&request).await?.value);
            }
            Self::Store { store, account, .. } => (store, account),
        };
        let now = Timestamp::now();
        // A user who can write the store has all rights.
        let granted = grant(&request, GrantContext { account: &account.name, creator: Scope::ALL }, now)?;
        let vm = match &granted.vm {
            Some(vm) => Some(find_running_vm(store, account, &vm.as_text()).await?),
            None => None,
        };
        let secret = KeySecret::from_random(granted.environment, random::bytes()?);
        let record = store.create_key(NewKey {
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
            request_id: None,
        });
        Ok(CreatedKey { key: secret.expose().to_owned(), record: record.await?.key })
    }

    /// Lists all keys, newest first.
    pub(super) async fn list(&self) -> anyhow::Result<Vec<Key>> {
        let mut keys = Vec::new();
        match self {
            Self::Api { client, .. } => {
                self.require_own_account("lists")?;
                let mut cursor: Option<String> = None;
                loop {
                    let page = client.run(&ListKeys { cursor, ..ListKeys::default() }).await?.value;
                    keys.extend(page.keys);
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(keys);
                    }
                }
            }
            Self::Store { store, account, .. } => {
                let mut before = None;
                loop {
                    let page = store.list_keys(skep_store::ListKeys {
                        account: account.id,
                        scopes: Scope::ALL.to_vec(),
                        limit: PAGE,
                        before,
                    });
                    let page = page.await?;
                    keys.extend(page.keys.into_iter().map(|record| record.key));
                    before = page.next;
                    if before.is_none() {
                        return Ok(keys);
                    }
                }
            }
        }
    }

    pub(super) async fn rotate(&self, id: KeyId, request: &RotateKey) -> anyhow::Result<CreatedKey> {
        let (store, account) = match self {
            Self::Api { client, .. } => {
                self.require_own_account("rotates")?;
                return Ok(client.run_on(id, request).await?.value);
            }
            Self::Store { store, account, .. } => (store, account),
        };
        let at = Timestamp::now();
        let old = store.key(account.id, id).await?.key;
        // A user who can write the store has all rights.
        let expires_at = check_rotation(&old, request, Scope::ALL, at)?;
        let secret = KeySecret::from_random(old.environment, random::bytes()?);
        let record = store.rotate_key(skep_store::RotateKey {
            account: account.id,
            id: old.id,
            hash: secret.hash(),
            prefix: secret.prefix().to_owned(),
            expires_at,
            at,
            request_id: None,
        });
        Ok(CreatedKey { key: secret.expose().to_owned(), record: record.await?.key })
    }

    pub(super) async fn revoke(&self, id: KeyId) -> anyhow::Result<Key> {
        match self {
            Self::Api { client, .. } => {
                self.require_own_account("revokes single")?;
                Ok(client.run_on(id, &RevokeKey {}).await?.value)
            }
            Self::Store { store, account, .. } => {
                let command =
                    skep_store::RevokeKey { account: account.id, id, at: Timestamp::now(), request_id: None };
                Ok(store.revoke_key(command).await?.key)
            }
        }
    }

    /// Revokes all keys except the one in use: the key of the API call, or in a store the one in DATA_DIR/admin.key.
    pub(super) async fn revoke_all(&self, including_own: bool) -> anyhow::Result<RevokedKeys> {
        match self {
            Self::Api { client, other } => {
                let account = other.as_ref().map(|(id, _)| *id);
                let request = RevokeAllKeys { all: true, own: including_own, account };
                Ok(client.run(&request).await?.value)
            }
            Self::Store { store, account, own } => {
                let spared = match own.as_ref().filter(|_| !including_own) {
                    Some(secret) => store.key_by_hash(secret.hash()).await?.map(|found| found.record.key.id),
                    None => None,
                };
                let command = skep_store::RevokeAllKeys {
                    account: account.id,
                    scopes: Scope::ALL.to_vec(),
                    except: spared,
                    at: Timestamp::now(),
                    request_id: None,
                };
                Ok(store.revoke_all_keys(command).await?)
            }
        }
    }

    /// The account to work on; `None` if it is that of the key in use.
    pub(super) fn account(&self) -> Option<&str> {
        match self {
            Self::Api { other, .. } => other.as_ref().map(|(_, name)| name.as_str()),
            Self::Store { account, .. } => Some(&account.name),
        }
    }

    fn require_own_account(&self, what: &str) -> anyhow::Result<()> {
        match self {
            Self::Api { other: Some((_, name)), .. } => bail!(
                "the API {what} keys of the caller's own account only; use a key of `{name}`, or run this on the server's \
                 machine with --data-dir DIR"
            ),
            _ => Ok(()),
        }
    }
}

/// Finds a running VM of an account. The store may still list VMs that have died.
async fn find_running_vm(store: &SqliteStore, account: &Account, given: &str) -> anyhow::Result<VmId> {
    let unknown =
        || anyhow!("no VM `{given}` runs in the account `{}`; `skep ps` lists its VMs", account.name);
    let wanted = VmRef::parse(given).ok_or_else(unknown)?;
    let vms = store.live_vms().await?;
    let is_wanted = |vm: &VmBooted| match &wanted {
        VmRef::Pid(pid) => vm.pid == *pid,
        VmRef::Id(id) => vm.id == *id,
        VmRef::IdPrefix(beginning) => beginning.matches(vm.id),
        VmRef::Address(address) => vm.ip == address.to_string(),
        VmRef::Name(name) => vm.attributes.name.as_ref() == Some(name),
    };
    let own = vms.iter().map(|record| &record.vm).filter(|vm| vm.account == account.id && is_wanted(vm));
    match own.map(|vm| vm.id).collect::<Vec<_>>().as_slice() {
        [] => Err(unknown()),
        [vm] => Ok(*vm),
        several => bail!("the ids of {} VMs begin with `{given}`; give a longer beginning", several.len()),
    }
}

/// The admin key, if this user may read its file.
pub(super) fn read_admin_key(path: &Path) -> Option<KeySecret> {
    KeySecret::parse(fs::read_to_string(path).ok()?.trim()).ok()
}
