//! Requests of `/api/accounts`.

use skep_api::{
    AccountId,
    accounts::{Account, AccountList, ChangeAccount, CreateAccount, DeletedAccount},
};

use crate::{Answered, Client, Result, client::encode_segment};

impl Client {
    /// `GET /api/accounts`: a page of accounts. `cursor` is the `next_cursor` of the previous page.
    ///
    /// # Errors
    /// Those of every request: see [`crate::Error`].
    pub async fn accounts(&self, cursor: Option<&str>) -> Result<Answered<AccountList>> {
        match cursor {
            Some(cursor) => self.get(&format!("api/accounts?cursor={}", encode_segment(cursor))).await,
            None => self.get("api/accounts").await,
        }
    }

    /// `POST /api/accounts`: creates an account.
    ///
    /// # Errors
    /// `name_taken`, `workspace_taken`, and those of every request.
    pub async fn create_account(&self, request: &CreateAccount) -> Result<Answered<Account>> {
        self.post("api/accounts", request).await
    }

    /// `GET /api/accounts/{id}`: the record of an account.
    ///
    /// # Errors
    /// `unknown_account`, and those of every request.
    pub async fn account(&self, id: AccountId) -> Result<Answered<Account>> {
        self.get(&format!("api/accounts/{id}")).await
    }

    /// `PATCH /api/accounts/{id}`: changes roots, networks or limits of an account.
    ///
    /// # Errors
    /// `unknown_account`, `account_protected`, and those of every request.
    pub async fn change_account(&self, id: AccountId, request: &ChangeAccount) -> Result<Answered<Account>> {
        self.patch(&format!("api/accounts/{id}"), request).await
    }

    /// `DELETE /api/accounts/{id}`: deletes an account. With `force`, its VMs are ended first.
    ///
    /// # Errors
    /// `unknown_account`, `account_in_use`, `account_protected`, and those of every request.
    pub async fn delete_account(&self, id: AccountId, force: bool) -> Result<Answered<DeletedAccount>> {
        self.delete(&format!("api/accounts/{id}?force={force}")).await
    }
}
