//! The server's requests that concern templates.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use skep_api::{ErrorCode, Failure, TemplateId, templates::GuestSize};
use skep_keeper_protocol::{MAX_TEMPLATE_TEXT_BYTES, TEMPLATE_PAGE_SIZE, TemplateState, TemplateStatus};
use tokio::{task::spawn_blocking, time::sleep};

use super::{Slot, Vmms};
use crate::{Error, capacity, memory};

/// Between two looks at which templates are in use.
const UNLOAD_INTERVAL: Duration = Duration::from_secs(10);

impl Vmms {
    /// Begins with the builds of templates.
    pub(crate) fn begin_builds(&self) {
        let (data_dir, tree, admissions) =
            (self.data_dir.clone(), self.tree.clone(), self.admissions.clone());
        self.swarm.templates.begin_builds(Box::new(move || {
            let admitted = admissions.bytes();
            let memory = memory::read(&tree, 0)?.without(admitted);
            Ok(capacity::check_now(&data_dir, &memory)?)
        }));
    }

    pub(super) fn build_template(
        &self,
        template: TemplateId,
        parent: TemplateId,
        size: GuestSize,
    ) -> Result<(), Error> {
        capacity::check_size(size, self.capacity.memory_mb)?;
        // It boots a guest and writes its files.
        capacity::check_now(&self.data_dir, &self.memory_after_admissions()?)?;
        Ok(self.swarm.templates.build(template, parent, size)?)
    }

    pub(super) fn template_status(&self, template: TemplateId) -> Result<TemplateStatus, Error> {
        let found = self.swarm.templates.status(template);
        Ok(shortened(found.ok_or_else(|| Failure::unknown_template(template.to_string()))?))
    }

    pub(super) fn boot_disk(&self, template: TemplateId, snapshot: TemplateId) -> Result<(), Error> {
        capacity::check_now(&self.data_dir, &self.memory_after_admissions()?)?;
        Ok(self.swarm.templates.boot_disk(template, snapshot)?)
    }

    pub(super) fn list_templates(&self, after: Option<TemplateId>) -> Vec<TemplateStatus> {
        let all = self.swarm.templates.list().into_iter();
        all.filter(|status| after < Some(status.template)).take(TEMPLATE_PAGE_SIZE).map(shortened).collect()
    }

    /// The server counts the VMs of a template too, but the keeper does not rely on it.
    pub(super) async fn remove_template(self: &Arc<Self>, template: TemplateId) -> Result<(), Error> {
        if self.is_in_use(template) {
            let message = format!("VMs use the template {template}; end them first");
            return Err(Failure::new(ErrorCode::TemplateInUse, message).into());
        }
        let this = Arc::clone(self);
        let removed = spawn_blocking(move || this.swarm.templates.remove(template)).await;
        Ok(removed.map_err(|error| Error::io("end of a template")(std::io::Error::other(error)))??)
    }

    /// Drops unused templates from memory until the task is aborted.
    pub(crate) async fn unload_templates(self: Arc<Self>) {
        loop {
            sleep(UNLOAD_INTERVAL).await;
            let (templates, in_use) = (Arc::clone(&self.swarm.templates), self.templates_in_use());
            // Only a panic fails it, which is logged.
            let _ = spawn_blocking(move || templates.unload_unused(&in_use)).await;
        }
    }

    fn templates_in_use(&self) -> BTreeSet<TemplateId> {
        let template = |slot: &Slot| match slot {
            Slot::Running(resources) => resources.template(),
            Slot::Busy => None,
        };
        self.slots().values().filter_map(template).collect()
    }

    fn is_in_use(&self, template: TemplateId) -> bool {
        self.templates_in_use().contains(&template)
    }
}

/// Cuts its texts, so that a page of them fits into a packet.
fn shortened(mut status: TemplateStatus) -> TemplateStatus {
    match &mut status.state {
        TemplateState::Building { step: text }
        | TemplateState::Damaged { reason: text }
        | TemplateState::Outdated { reason: text }
        | TemplateState::Failed { failure: Failure { message: text, .. } } => {
            text.truncate(text.floor_char_boundary(MAX_TEMPLATE_TEXT_BYTES));
        }
        TemplateState::Ready { .. } => {}
    }
    status
}
