//! Builds and removals of templates, which the keeper does.

use jiff::Timestamp;
use skep_api::{AccountId, ErrorCode, Failure, TemplateId, VmId, templates::GuestSize};
use skep_keeper_protocol::TemplateStatus;
use skep_store::RecordUnusableSnapshots;

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

    /// The templates that the keeper has or builds, in the order of their ids, without the snapshots of VMs that are on disk,
    /// whose states go to the records of these VMs.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn templates(&self) -> Result<Vec<TemplateStatus>, Error> {
        // These are read before the list as well as after it: a VM that is resumed in between has no snapshot any more, and the
        // list still has it.
        let of_vms = self.registry().snapshots();
        let mut templates = self.0.surroundings.keeper.list_templates().await?;
        for vm in self.registry().all() {
            let found = vm.snapshot().map(|id| templates.binary_search_by_key(&id, |status| status.template));
            if let Some(Ok(at)) = found {
                vm.set_stored(&templates[at]);
            }
        }
        templates.retain(|status| {
            !of_vms.contains(&status.template) && !self.registry().snapshots().contains(&status.template)
        });
        Ok(templates)
    }

    /// Records which VMs on disk have memory that cannot be used, as far as [`Swarm::templates`] and their pauses found, and this
    /// server has not recorded it yet. The store writes an event for what is new.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn record_unusable_snapshots(&self) -> Result<(), Error> {
        let all = self.registry().all();
        let unusable: Vec<_> = all.iter().filter_map(|vm| Some((vm, vm.unusable_snapshot()?))).collect();
        if unusable.is_empty() {
            return Ok(());
        }
        let snapshots = unusable.iter().map(|(_, found)| found.clone()).collect();
        let command = RecordUnusableSnapshots { snapshots, at: Timestamp::now() };
        self.0.surroundings.store.record_unusable_snapshots(command).await?;
        unusable.iter().for_each(|(vm, found)| vm.mark_recorded(found));
        Ok(())
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
