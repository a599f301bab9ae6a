//! Guests that are booted from the disk of a snapshot, for VMs that start without the memory of that snapshot: it may be outdated
//! or damaged. Such a guest is saved like a template that is built, with the root file system and the layer of the snapshot and with
//! kernel and guest agent of `base`. Its VMs need its files for copies, so they stay until no VM needs them.

use std::{collections::BTreeSet, path::PathBuf, time::Instant};

use skep_api::{Failure, TemplateId};
use skep_template::TemplateFile;

use super::{
    super::{idle_time::IdleTime, snapshot_dir},
    BuildQueue, BuiltTemplates, Inner, Kind, Phase, Ready, Recipe,
};

impl BuiltTemplates {
    /// Queues the boot of a guest from the disk of a snapshot. The snapshot may be outdated or damaged.
    pub(in super::super) fn boot_disk(&self, id: TemplateId, snapshot: TemplateId) -> Result<(), Failure> {
        let of_snapshot = self.0.table().templates.get(&snapshot).map(|entry| entry.recipe);
        let recipe = of_snapshot.filter(Recipe::is_snapshot);
        let recipe = recipe.ok_or_else(|| Failure::unknown_template(snapshot.to_string()))?;
        self.0.begin(id, Recipe::disk_of(snapshot, recipe.size), BuildQueue::push_first)
    }

    /// Drops the memory files of templates that no VM has used for a minute, and removes what only VMs needed.
    pub(in super::super) fn unload_unused(&self, in_use: &BTreeSet<TemplateId>) {
        self.unload_unused_at(in_use, Instant::now());
    }

    pub(super) fn unload_unused_at(&self, in_use: &BTreeSet<TemplateId>, now: Instant) {
        let (mut unused, mut unneeded) = (Vec::new(), Vec::new());
        let mut table = self.0.table();
        let of_vms_on_disk = table.origins_of_pauses();
        for (id, entry) in &mut table.templates {
            let is_in_use = in_use.contains(id);
            if entry.is_unneeded(is_in_use || of_vms_on_disk.contains(id), now) {
                unneeded.push(*id);
            }
            // No other VM begins with what was made for one boot.
            let serves_boots = entry.recipe.kind != Kind::Disk;
            let Phase::Ready(ready) = &mut entry.phase else { continue };
            if ready.loaded.is_some() && ready.idle.is_over(is_in_use && serves_boots, now) {
                tracing::debug!("the template {id} is dropped from memory, because no VM uses it");
                unused.extend(ready.loaded.take());
                ready.idle = IdleTime::default();
            }
        }
        // The lock is released first, because the kernel takes long to free hundreds of megabytes.
        drop(table);
        drop(unused);
        for id in unneeded {
            tracing::debug!("the template {id} is removed, because no VM needs it");
            if let Err(error) = self.remove(id) {
                tracing::warn!(%error, "the template {id} is not removed: {error}");
            }
        }
    }
}

impl Inner {
    /// The state of a guest that an earlier keeper booted from a disk. VMs that run may still need its files, but no further VM
    /// is started from it. `None` if its files are incomplete; the request that asked for it has ended.
    pub(super) fn find_disk(&self, id: TemplateId) -> Option<Phase> {
        let dir = match self.find_files(id)? {
            Ok(dir) => dir,
            Err(unreadable) => return Some(unreadable),
        };
        Ready::of(dir, &TemplateFile::OF_PARENT).ok().map(Phase::Ready)
    }

    /// The folder with the files of a snapshot, also if its memory cannot be used.
    pub(super) fn snapshot_dir(&self, id: TemplateId) -> Result<PathBuf, Failure> {
        snapshot_dir(&self.shelf, id).ok_or_else(|| Failure::unknown_template(id.to_string()))
    }
}
