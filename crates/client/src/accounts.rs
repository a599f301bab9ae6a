//! `/api/accounts`.

use skep_api::{
    AccountId,
    accounts::{Account, AccountList, ChangeAccount, CreateAccount, DeletedAccount},
};

use crate::{Answered, Client, Result, client::segment};

impl Client {
    /// `GET /api/accounts`: a page, from `cursor` on.
    ///
    /// # Errors
    /// Those of every call: see [`crate::Error`].
    pub async fn accounts(&self, cursor: Option<&str>) -> Result<Answered<AccountList>> {
        match cursor {
            Some(cursor) => self.get(&format!("api/accounts?cursor={}", segment(cursor))).await,
            None => self.get("api/accounts").await,
        }
    }

    /// `POST /api/accounts`.
    ///
    /// # Errors
    /// `name_taken`, `workspace_taken`, and those of every call.
    pub async fn create_account(&self, request: &CreateAccount) -> Result<Answered<Account>> {
        self.post("api/accounts", request).await
    }

    /// `GET /api/accounts/{id}`.
    ///
    /// # Errors
    /// `unknown_account`, and those of every call.
    pub async fn account(&self, id: AccountId) -> Result<Answered<Account>> {
        self.get(&format!("api/accounts/{id}")).await
    }

    /// `PATCH /api/accounts/{id}`.
    ///
    /// # Errors
    /// `unknown_account`, `account_protected`, and those of every call.
    pub async fn change_account(&self, id: AccountId, request: &ChangeAccount) -> Result<Answered<Account>> {
        self.patch(&format!("api/accounts/{id}"), request).await
    }

    /// `DELETE /api/accounts/{id}`; with `force` its VMs are ended too.
    ///
    /// # Errors
    /// `unknown_account`, `account_in_use`, `account_protected`, and those of every call.
    pub async fn delete_account(&self, id: AccountId, force: bool) -> Result<Answered<DeletedAccount>> {
        self.delete(&format!("api/accounts/{id}?force={force}")).await
    }
}
