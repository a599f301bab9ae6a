//! Builds and removals of templates, which the keeper does.

use skep_api::{AccountId, ErrorCode, Failure, TemplateId, VmId, templates::GuestSize};
use skep_keeper_protocol::TemplateStatus;

use super::Swarm;
use crate::Error;

impl Swarm {
    /// Begins to build a template from the disk of another one.
    ///
    /// # Errors
    /// The keeper refused, or is gone. The message is meant for callers.
    pub async fn build_template(
        &self,
        template: TemplateId,
        parent: TemplateId,
        size: GuestSize,
    ) -> Result<(), Failure> {
        match self.0.surroundings.keeper.build_template(template, parent, size).await {
            Err(skep_keeper_protocol::Error::Refused(failure)) if failure.code != ErrorCode::Internal => {
                Err(failure)
            }
            other => other.map_err(|error| Error::from(error).into()),
        }
    }

    /// The template that a VM was booted from, or that its parent was.
    ///
    /// # Errors
    /// Unknown VM.
    pub fn template_of(&self, account: &AccountId, vm: VmId) -> Result<TemplateId, Error> {
        Ok(self.registry().by_id(*account, vm)?.facts.template_id)
    }

    /// The templates that the keeper has or builds, in the order of their ids, without the snapshots of VMs that are on disk.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn templates(&self) -> Result<Vec<TemplateStatus>, Error> {
        // Before the list: a snapshot that is in it and was removed since is of no VM.
        let of_vms = self.registry().snapshots();
        let mut templates = self.0.surroundings.keeper.list_templates().await?;
        templates.retain(|status| {
            !of_vms.contains(&status.template) && !self.registry().snapshots().contains(&status.template)
        });
        Ok(templates)
    }

    /// Ends the parked VMs of a template, and removes it with its files.
    ///
    /// # Errors
    /// VMs or templates use it, the keeper could not remove it, or is gone. A template that the keeper does not have is
    /// no error.
    pub async fn remove_template(&self, template: TemplateId) -> Result<(), Error> {
        self.0.booter.pool.forget(template).await;
        match self.0.surroundings.keeper.remove_template(template).await {
            Err(error) if error.code() != ErrorCode::UnknownTemplate => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The most memory that a guest can have on this machine, in MiB.
    pub fn max_guest_memory_mb(&self) -> u64 {
        self.0.budget.memory_mb()
    }
}
