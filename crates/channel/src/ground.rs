//! On whose ground a call is done, where one place serves several accounts.

use std::path::PathBuf;

use http::HeaderName;
use serde::{Deserialize, Serialize};

/// The header that carries it, as JSON.
pub(crate) const GROUND: HeaderName = HeaderName::from_static("skep-ground");

/// On whose ground a call is done. Said by the server and by nobody else: a guest has one owner and refuses it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ground {
    /// The folders of the account; commands start in the first.
    pub roots: Vec<PathBuf>,
}
