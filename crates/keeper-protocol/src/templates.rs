//! The requests of the server that concern templates.

use skep_api::{TemplateId, templates::GuestSize};

use crate::{Answer, Error, Request, ServerEnd, TEMPLATE_PAGE_SIZE, TemplateStatus, server_end::unexpected};

impl ServerEnd {
    /// Begins to build a template from the disk of another one.
    ///
    /// # Errors
    /// The parent is unknown or cannot be used, the size is out of range, too many builds are queued, or the keeper is
    /// gone.
    pub async fn build_template(
        &self,
        template: TemplateId,
        parent: TemplateId,
        size: GuestSize,
    ) -> Result<(), Error> {
        match self.request(Request::BuildTemplate { template, parent, size }).await? {
            (Answer::Building, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Begins to boot a guest from the disk of a snapshot, which becomes a template with this id.
    ///
    /// # Errors
    /// There is no such snapshot, too many builds are queued, the machine lacks memory, or the keeper is gone.
    pub async fn boot_disk(&self, template: TemplateId, snapshot: TemplateId) -> Result<(), Error> {
        match self.request(Request::BootDisk { template, snapshot }).await? {
            (Answer::Building, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The state of a template.
    ///
    /// # Errors
    /// The keeper does not have it, or is gone.
    pub async fn template_status(&self, template: TemplateId) -> Result<TemplateStatus, Error> {
        match self.request(Request::TemplateStatus { template }).await? {
            (Answer::Template(status), _) => Ok(status),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// All templates, in the order of their ids.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn list_templates(&self) -> Result<Vec<TemplateStatus>, Error> {
        let mut found: Vec<TemplateStatus> = Vec::new();
        loop {
            let after = found.last().map(|last| last.template);
            match self.request(Request::ListTemplates { after }).await? {
                (Answer::Templates { templates }, _) => {
                    let is_last = templates.len() < TEMPLATE_PAGE_SIZE;
                    found.extend(templates);
                    if is_last {
                        return Ok(found);
                    }
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// Removes a template with its files, or ends its build.
    ///
    /// # Errors
    /// The keeper does not have it, VMs or templates use it, or the keeper is gone.
    pub async fn remove_template(&self, template: TemplateId) -> Result<(), Error> {
        match self.request(Request::RemoveTemplate { template }).await? {
            (Answer::TemplateRemoved, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }
}
