//! What a request turns out to be on its way: whose it is, and what it acts on. The audit reads it at the end.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::Extensions;
use skep_api::{AccountId, audit::AuditKey, keys::Key};

/// What is known of one request so far. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trail(Arc<Mutex<Found>>);

/// What was found out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// The account of the key, also of one that is refused.
    pub account: Option<AccountId>,
    /// The key, also one that is refused.
    pub key: Option<AuditKey>,
    /// What it acts on.
    pub resource: Option<String>,
}

impl Trail {
    /// The trail of a request.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Notes the key that was presented, whether or not it is let in.
    pub(crate) fn presents(&self, key: &Key) {
        let mut found = self.lock();
        found.account = Some(key.account);
        found.key = Some(AuditKey { id: key.id, prefix: key.prefix.clone() });
    }

    /// Notes what the request acts on: an id, nothing that somebody wrote.
    pub(crate) fn acts_on(&self, resource: impl Display) {
        self.lock().resource = Some(resource.to_string());
    }

    /// What was found out so far.
    pub(crate) fn found(&self) -> Found {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        // Each note is one assignment: whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
