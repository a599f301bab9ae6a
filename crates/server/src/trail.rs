//! Collects the account, the key and the resource of a request while it is processed, for its audit entry.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::Extensions;
use skep_api::{AccountId, audit::AuditKey, keys::Key};

/// The facts of one request for its audit entry. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trail(Arc<Mutex<Found>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// The account of the key, also where the key is refused.
    pub account: Option<AccountId>,
    /// The presented key, also where it is refused.
    pub key: Option<AuditKey>,
    pub resource: Option<String>,
}

impl Trail {
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Records the presented key, whether or not it is accepted.
    pub(crate) fn presents(&self, key: &Key) {
        let mut found = self.lock();
        found.account = Some(key.account);
        found.key = Some(AuditKey { id: key.id, prefix: key.prefix.clone() });
    }

    /// Records the resource: an id, never text of the caller.
    pub(crate) fn acts_on(&self, resource: impl Display) {
        self.lock().resource = Some(resource.to_string());
    }

    pub(crate) fn found(&self) -> Found {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        // Every update is a series of single assignments, so the value is valid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
