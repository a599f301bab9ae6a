//! Delivers events to the webhook endpoints of accounts.
//!
//! ```text
//! events ── a cursor of each webhook, in one transaction ──► deliveries ── those that are due ──► Sender ──► endpoint
//!    ▲                                                         ▲   │                                │
//!    └── wait here while too many deliveries of a webhook do ──┘   └──── attempt, state, next time ◄┘
//! ```
//! All state is in the store: after a restart, due deliveries continue, and attempts that were in progress are
//! repeated.

mod attempt;
mod dispatch;
mod retry;
mod sender;
mod signature;
mod target;

use std::{fmt, path::Path, sync::Arc};

use skep_api::{AccountId, WebhookId};

pub(crate) use self::{dispatch::Dispatcher, signature::Secret, target::parse_target};
pub use self::{
    retry::RetryPolicy,
    sender::{Lookup, LookupFuture, SystemLookup},
};
use crate::seal::SealingKey;
use skep_workspace::git::AllowedAddresses;

/// The file with the key that encrypts the secrets of webhooks, in the data directory.
const KEY_FILE: &str = "webhooks.key";

/// Settings of webhook delivery.
#[derive(Clone)]
pub struct WebhookSettings {
    /// Private networks, addresses and hosts that webhooks may reach.
    pub allow: Vec<String>,
    /// Resolves host names.
    pub lookup: Arc<dyn Lookup>,
    pub retries: RetryPolicy,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self { allow: Vec::new(), lookup: Arc::new(SystemLookup), retries: RetryPolicy::default() }
    }
}

impl fmt::Debug for WebhookSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookOrder")
            .field("allow", &self.allow)
            .field("pace", &self.retries)
            .finish_non_exhaustive()
    }
}

/// What the dispatcher and the routes share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WebhookContext {
    /// Encrypts and decrypts secrets.
    pub(crate) seal: SealingKey,
    /// Private addresses and hosts that may be reached.
    pub(crate) allowed: Arc<AllowedAddresses>,
}

impl WebhookContext {
    /// `folder` holds the key file; `allow` is the operator's list of private addresses and hosts.
    pub(crate) fn new(folder: &Path, allow: &[String]) -> Self {
        Self {
            seal: SealingKey::in_file(&folder.join(KEY_FILE)),
            allowed: Arc::new(AllowedAddresses::parse(allow)),
        }
    }
}

/// The context to which the encryption of a webhook's secrets is bound.
pub(crate) fn seal_context(account: AccountId, id: WebhookId) -> String {
    format!("{account} {id}")
}
