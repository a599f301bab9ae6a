//! The server's requests that concern templates.

use std::sync::Arc;

use skep_api::{ErrorCode, Failure, TemplateId, templates::GuestSize};
use skep_keeper_protocol::{MAX_TEMPLATE_TEXT_BYTES, TEMPLATE_PAGE_SIZE, TemplateState, TemplateStatus};
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::Error;

impl Vmms {
    pub(super) fn build_template(
        &self,
        template: TemplateId,
        parent: TemplateId,
        size: GuestSize,
    ) -> Result<(), Error> {
        Ok(self.swarm.templates.build(template, parent, size)?)
    }

    pub(super) fn template_status(&self, template: TemplateId) -> Result<TemplateStatus, Error> {
        let found = self.swarm.templates.list().into_iter().find(|status| status.template == template);
        Ok(shortened(found.ok_or_else(|| Failure::unknown_template(template.to_string()))?))
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

    fn is_in_use(&self, template: TemplateId) -> bool {
        let is_meant = |slot: &Slot| match slot {
            Slot::Running(resources) => resources.template() == Some(template),
            Slot::Busy => false,
        };
        self.slots().values().any(is_meant)
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
