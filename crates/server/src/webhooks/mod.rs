//! Webhooks: events on their way to endpoints of accounts.
//!
//! ```text
//! events ── a cursor of each webhook, in one transaction ──► deliveries ── those that are due ──► Sender ──► endpoint
//!    ▲                                                         ▲   │                                │
//!    └── wait here while too many deliveries of a webhook do ──┘   └──── attempt, state, next time ◄┘
//! ```
//! Nothing is remembered but in the store: a start goes on with what is due, and what was under way is sent again.

mod dispatch;
mod flight;
mod pace;
mod sender;
mod signature;
mod target;

use std::{fmt, path::Path, sync::Arc};

use skep_api::{AccountId, WebhookId};

pub(crate) use self::{dispatch::Dispatcher, signature::Secret, target::target};
pub use self::{
    pace::Pace,
    sender::{Looking, Lookup, SystemLookup},
};
use crate::seal::Seal;
use skep_workspace::git::Allowed;

/// The file with the key of their secrets, in the server's folder.
const KEY_FILE: &str = "webhooks.key";

/// How webhooks are sent.
#[derive(Clone)]
pub struct WebhookOrder {
    /// Private networks, addresses and hosts that they may reach.
    pub allow: Vec<String>,
    /// How names are looked up.
    pub lookup: Arc<dyn Lookup>,
    /// How patient deliveries are.
    pub pace: Pace,
}

impl Default for WebhookOrder {
    fn default() -> Self {
        Self { allow: Vec::new(), lookup: Arc::new(SystemLookup), pace: Pace::default() }
    }
}

impl fmt::Debug for WebhookOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookOrder")
            .field("allow", &self.allow)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

/// What those who send and those who answer callers share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Outgoing {
    /// Seals secrets, and opens them.
    pub(crate) seal: Seal,
    /// What may be reached besides what is public.
    pub(crate) allowed: Arc<Allowed>,
}

impl Outgoing {
    /// With the key in this folder, and what an operator allows.
    pub(crate) fn of(folder: &Path, allow: &[String]) -> Self {
        Self { seal: Seal::of(&folder.join(KEY_FILE)), allowed: Arc::new(Allowed::of(allow)) }
    }
}

/// What the secrets of a webhook are sealed for.
pub(crate) fn owner(account: AccountId, id: WebhookId) -> String {
    format!("{account} {id}")
}
