//! Credentials with which the server authenticates to git hosts.

use serde_json::json;
use skep_api::git::{CredentialPage, CredentialRemoved, KeptCredential};

use crate::{Answered, Client, Result, client::with_query};

impl Client {
    /// `GET /api/git/credentials`: lists the stored credentials. One page holds as many as an account can have.
    ///
    /// # Errors
    /// Those of every request: see [`crate::Error`].
    pub async fn git_credentials(&self) -> Result<Answered<CredentialPage>> {
        self.get("api/git/credentials?limit=1000").await
    }

    /// `POST /api/git/credentials`: stores a token for a host.
    ///
    /// # Errors
    /// `invalid_value`, and those of every request.
    pub async fn set_git_credential(
        &self,
        host: &str,
        token: &str,
        username: Option<&str>,
    ) -> Result<Answered<KeptCredential>> {
        let mut body = json!({"host": host, "token": token});
        if let Some(username) = username {
            body["username"] = json!(username);
        }
        self.post("api/git/credentials", &body).await
    }

    /// `DELETE /api/git/credentials`: removes the token of a host.
    ///
    /// # Errors
    /// `unknown_credential`, and those of every request.
    pub async fn remove_git_credential(&self, host: &str) -> Result<Answered<CredentialRemoved>> {
        self.delete(&with_query("api/git/credentials", &[("host", Some(host.to_owned()))])).await
    }
}
