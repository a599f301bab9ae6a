//! What the routes of templates share with the background task that compares records and files.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::TemplateId;
use skep_store::TemplateStatus;
use tokio::sync::Notify;

/// The builds that are handed to the keeper at the moment, and a signal that templates changed. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct TemplateBuilds(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Templates whose record may exist although the keeper does not know them yet.
    submitting: Mutex<HashSet<TemplateId>>,
    changed: Notify,
}

/// Marks a build as being handed to the keeper until it is dropped.
#[derive(Debug)]
pub(crate) struct SubmissionGuard {
    builds: TemplateBuilds,
    template: TemplateId,
}

impl TemplateBuilds {
    /// Marks a build. Call it before the record is created, and drop the guard when the keeper has answered.
    pub(crate) fn begin(&self, template: TemplateId) -> SubmissionGuard {
        self.submitting().insert(template);
        SubmissionGuard { builds: self.clone(), template }
    }

    /// The builds that are being handed to the keeper.
    pub(crate) fn snapshot(&self) -> HashSet<TemplateId> {
        self.submitting().clone()
    }

    /// Makes the background task look at the templates now.
    pub(crate) fn notify(&self) {
        self.0.changed.notify_one();
    }

    /// Waits for [`TemplateBuilds::notify`].
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn submitting(&self) -> MutexGuard<'_, HashSet<TemplateId>> {
        self.0.submitting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SubmissionGuard {
    fn drop(&mut self) {
        self.builds.submitting().remove(&self.template);
        self.builds.notify();
    }
}

/// The state of a template of the keeper, as the store records it.
pub(crate) fn to_store(kept: skep_swarm::TemplateStatus) -> TemplateStatus {
    use skep_swarm::TemplateState as Kept;
    let (size_bytes, own_bytes) = (kept.size_bytes, kept.own_bytes);
    match kept.state {
        Kept::Building { step } => TemplateStatus::Building { progress: Some(step) },
        Kept::Ready { key } => TemplateStatus::Ready { key, size_bytes, own_bytes },
        Kept::Failed { failure } => TemplateStatus::Failed { reason: failure.message },
        Kept::Damaged { reason } => TemplateStatus::Damaged { reason },
        Kept::Outdated { reason } => TemplateStatus::Outdated { reason },
    }
}
