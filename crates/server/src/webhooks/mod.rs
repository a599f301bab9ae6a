//! Delivers events to the webhook endpoints of accounts.
//!
//! ```text
//! events ── a cursor of each webhook, in one transaction ──► deliveries ── those that are due ──► Sender ──► endpoint
//!    ▲                                                         ▲   │                                │
//!    └── wait here while too many deliveries of a webhook do ──┘   └──── attempt, state, next time ◄┘
//! ```
//! All state is in the store: after a restart, due deliveries continue, and attempts that were in progress are
//! repeated.

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

/// The file with the key that encrypts the secrets of webhooks, in the data directory.
const KEY_FILE: &str = "webhooks.key";

/// Settings of webhook delivery.
#[derive(Clone)]
pub struct WebhookOrder {
    /// Private networks, addresses and hosts that webhooks may reach.
    pub allow: Vec<String>,
    /// Resolves host names.
    pub lookup: Arc<dyn Lookup>,
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

/// What the dispatcher and the routes share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Outgoing {
    /// Encrypts and decrypts secrets.
    pub(crate) seal: Seal,
    /// Private addresses and hosts that may be reached.
    pub(crate) allowed: Arc<Allowed>,
}

impl Outgoing {
    /// `folder` holds the key file; `allow` is the operator's list of private addresses and hosts.
    pub(crate) fn of(folder: &Path, allow: &[String]) -> Self {
        Self { seal: Seal::of(&folder.join(KEY_FILE)), allowed: Arc::new(Allowed::of(allow)) }
    }
}

/// The context to which the encryption of a webhook's secrets is bound.
pub(crate) fn owner(account: AccountId, id: WebhookId) -> String {
    format!("{account} {id}")
}
