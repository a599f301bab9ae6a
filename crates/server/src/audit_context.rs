//! Collects the account, the key and the resource of a request while it is processed, for its audit entry.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::Extensions;
use skep_api::{AccountId, audit::AuditKey, egress::EgressPolicy, keys::Key};

/// The facts of one request for its audit entry. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditContext(Arc<Mutex<AuditFacts>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct AuditFacts {
    /// The account of the key, also where the key is refused.
    pub account: Option<AccountId>,
    /// The presented key, also where it is refused.
    pub key: Option<AuditKey>,
    pub resource: Option<String>,
    pub egress: Option<EgressPolicy>,
}

impl AuditContext {
    pub(crate) fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Records the presented key, whether or not it is accepted.
    pub(crate) fn set_key(&self, key: &Key) {
        let mut facts = self.lock();
        facts.account = Some(key.account);
        facts.key = Some(AuditKey { id: key.id, prefix: key.prefix.clone() });
    }

    /// Records the resource: an id, never text of the caller.
    pub(crate) fn set_resource(&self, resource: impl Display) {
        self.lock().resource = Some(resource.to_string());
    }

    /// Records the egress policy that the request asks for, if it does.
    pub(crate) fn set_egress(&self, policy: Option<&EgressPolicy>) {
        self.lock().egress = policy.cloned();
    }

    pub(crate) fn facts(&self) -> AuditFacts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, AuditFacts> {
        // Every update is a series of single assignments, so the value is valid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
