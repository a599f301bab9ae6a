//! Webhooks: settings, secrets and signatures, and which endpoints may be reached. The routes and the deliveries in
//! `background/webhooks/` share them.

pub(crate) mod retry;
pub(crate) mod signature;
pub(crate) mod target;

use std::{fmt, path::Path, sync::Arc};

use skep_api::{AccountId, WebhookId};
use skep_egress::{Allowlist, Lookup, Rules, SystemLookup};

pub use self::retry::RetryPolicy;
pub(crate) use self::{signature::Secret, target::parse_target};
use crate::seal::SealingKey;

/// The file with the key that encrypts the secrets of webhooks, in the data directory.
const KEY_FILE: &str = "webhooks.key";

#[derive(Clone)]
pub struct WebhookSettings {
    /// Private networks, addresses and hosts that webhooks may reach.
    pub allow: Vec<String>,
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
        f.debug_struct("WebhookSettings")
            .field("allow", &self.allow)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

/// What the dispatcher and the routes share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WebhookContext {
    pub(crate) seal: SealingKey,
    /// The addresses that may be reached.
    pub(crate) rules: Arc<Rules>,
}

impl WebhookContext {
    /// `folder` holds the key file; `allow` and `deny` are the operator's lists of addresses and hosts.
    pub(crate) fn new(folder: &Path, allow: &[String], deny: &[String]) -> Self {
        let (allow, deny) = (Allowlist::parse(allow), Allowlist::parse(deny));
        let rules = Arc::new(Rules { allow, deny, ..Rules::default() });
        Self { seal: SealingKey::in_file(&folder.join(KEY_FILE)), rules }
    }
}

/// The context to which the encryption of a webhook's secrets is bound.
pub(crate) fn seal_context(account: AccountId, id: WebhookId) -> String {
    format!("{account} {id}")
}
