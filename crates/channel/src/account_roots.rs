//! The account on whose behalf a request runs, for a server process that handles several accounts.

use std::path::PathBuf;

use http::HeaderName;
use serde::{Deserialize, Serialize};

/// The header that carries the roots as JSON.
pub(crate) const ACCOUNT_ROOTS_HEADER: HeaderName = HeaderName::from_static("skep-ground");

/// The account on whose behalf a request runs. Only the server sends it; a guest has a single owner and refuses it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AccountRoots {
    /// The folders of the account; commands start in the first one.
    pub roots: Vec<PathBuf>,
}
