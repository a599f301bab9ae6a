//! Requests of `/api/keys`.

use skep_api::{
    AccountId, KeyId,
    keys::{CreateKey, CreatedKey, Key, KeyList, RevokedKeys, RotateKey},
};

use crate::{Answered, Client, Result, client::encode_segment};

impl Client {
    /// `GET /api/keys`: a page of keys. `cursor` is the `next_cursor` of the previous page.
    ///
    /// # Errors
    /// Those of every request: see [`crate::Error`].
    pub async fn keys(&self, cursor: Option<&str>) -> Result<Answered<KeyList>> {
        match cursor {
            Some(cursor) => self.get(&format!("api/keys?cursor={}", encode_segment(cursor))).await,
            None => self.get("api/keys").await,
        }
    }

    /// `POST /api/keys`: creates a key.
    ///
    /// # Errors
    /// `name_taken`, `unknown_vm`, `scope_missing`, and those of every request.
    pub async fn create_key(&self, request: &CreateKey) -> Result<Answered<CreatedKey>> {
        self.post("api/keys", request).await
    }

    /// `GET /api/keys/{id}`: the record of a key.
    ///
    /// # Errors
    /// `unknown_key`, and those of every request.
    pub async fn key(&self, id: KeyId) -> Result<Answered<Key>> {
        self.get(&format!("api/keys/{id}")).await
    }

    /// `DELETE /api/keys/{id}`: revokes a key.
    ///
    /// # Errors
    /// `unknown_key`, and those of every request.
    pub async fn revoke_key(&self, id: KeyId) -> Result<Answered<Key>> {
        self.delete(&format!("api/keys/{id}")).await
    }

    /// `POST /api/keys/{id}/rotate`: creates a new key with the same name.
    ///
    /// # Errors
    /// `unknown_key`, `key_not_valid`, `scope_missing`, and those of every request.
    pub async fn rotate_key(&self, id: KeyId, request: &RotateKey) -> Result<Answered<CreatedKey>> {
        self.post(&format!("api/keys/{id}/rotate"), request).await
    }

    /// `DELETE /api/keys?all=true`: revokes all keys of `account`, by default the caller's. With `own`, the key of
    /// the request is revoked as well.
    ///
    /// # Errors
    /// `unknown_account`, and those of every request.
    pub async fn revoke_all_keys(
        &self,
        own: bool,
        account: Option<AccountId>,
    ) -> Result<Answered<RevokedKeys>> {
        let account = account.map(|account| format!("&account={account}")).unwrap_or_default();
        self.delete(&format!("api/keys?all=true&own={own}{account}")).await
    }
}
