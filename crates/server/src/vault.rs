//! Git credentials, encrypted at rest.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use jiff::Timestamp;
use skep_api::{AccountId, git::Credential};
use skep_store::{GitCredential, GitStore, SetGitCredential};

use crate::{error::Refusal, seal::SealingKey};

/// The file of the encryption key, in the data directory.
const KEY_FILE: &str = "git-credentials.key";

/// The git credentials of all accounts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Vault {
    store: Arc<dyn GitStore>,
    seal: SealingKey,
}

impl Vault {
    /// Credentials in this store, with the encryption key in this folder.
    pub(crate) fn new(store: Arc<dyn GitStore>, folder: &Path) -> Self {
        Self { store, seal: SealingKey::in_file(&folder.join(KEY_FILE)) }
    }

    /// Stores the credential of a host in place of its previous one.
    ///
    /// # Errors
    /// Those of the store, and `internal` where the encryption key cannot be read.
    pub(crate) async fn set(
        &self,
        account: AccountId,
        host: String,
        credential: &Credential,
        at: Timestamp,
    ) -> Result<GitCredential, Refusal> {
        let sealed = self.seal.seal(&sealing_owner(account, &host), credential.token.as_bytes()).await?;
        let credential = GitCredential {
            host,
            username: credential.username.clone(),
            encrypted_token: sealed,
            created_at: at,
        };
        self.store.set_git_credential(SetGitCredential { account, credential: credential.clone() }).await?;
        Ok(credential)
    }

    /// The credentials of an account, with encrypted tokens.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn list(&self, account: AccountId) -> Result<Vec<GitCredential>, Refusal> {
        Ok(self.store.git_credentials(account).await?)
    }

    /// Removes the credential of a host. Returns whether there was one.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn remove(&self, account: AccountId, host: &str) -> Result<bool, Refusal> {
        Ok(self.store.remove_git_credential(account, host).await?)
    }

    /// The decrypted credentials of an account, by host.
    ///
    /// # Errors
    /// Those of [`Self::set`].
    pub(crate) async fn open(&self, account: AccountId) -> Result<BTreeMap<String, Credential>, Refusal> {
        let mut opened = BTreeMap::new();
        for GitCredential { host, username, encrypted_token: sealed, .. } in
            self.store.git_credentials(account).await?
        {
            let token = self.seal.open(&sealing_owner(account, &host), &sealed).await?;
            match token.and_then(|token| String::from_utf8(token).ok()) {
                Some(token) => drop(opened.insert(host, Credential { username, token })),
                None => tracing::warn!(host, "a git credential was encrypted with another key; set it again"),
            }
        }
        Ok(opened)
    }
}

/// The owner of a sealed token: it can be decrypted only for the same account and host.
fn sealing_owner(account: AccountId, host: &str) -> String {
    format!("{account} {host}")
}
