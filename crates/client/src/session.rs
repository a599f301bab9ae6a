//! Requests of `/api/session`.

use skep_api::session::SessionLink;

use crate::{Answered, Client, Result};

impl Client {
    /// `POST /api/session/links`: creates a link that opens one browser session of this key.
    ///
    /// # Errors
    /// `invalid_value` if the server cannot tell its own address, and those of every request: see [`crate::Error`].
    pub async fn create_session_link(&self) -> Result<Answered<SessionLink>> {
        self.post("api/session/links", &serde_json::Map::new()).await
    }
}
