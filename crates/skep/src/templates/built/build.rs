//! The thread that builds templates, one after the other.

use std::{fs, path::Path, sync::Arc, thread};

use skep_api::{ErrorCode, TemplateId};
use skep_image::{BUILD_STEPS, load_template};
use skep_keeper::AdmitBuild;
use skep_template::Error;

use super::{
    super::{build_error::BuildError, entry::Outcome, keys_in_use},
    BuiltTemplates, Entry, Inner, Kind, Phase, Ready, Recipe, WAITS_FOR_PARENT,
};
use crate::output;

/// What callers read about a build that has not begun.
pub(super) const WAITS_FOR_RESOURCES: &str = "waits until the server has memory and disk space for a build";

impl BuiltTemplates {
    /// Starts the thread that builds.
    pub(in super::super) fn begin_builds(&self, admit: AdmitBuild) {
        if self.0.admit.set(admit).is_err() {
            return;
        }
        let builder = Arc::clone(&self.0);
        let spawned = thread::Builder::new().name("build".to_owned()).spawn(move || {
            loop {
                let id = builder.queue.next();
                builder.build(id);
                builder.queue.finish();
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no template is built, because its thread cannot be started: {error}");
        }
    }
}

impl Inner {
    /// Builds a template, and stores the outcome. Blocks for some seconds.
    pub(super) fn build(&self, id: TemplateId) {
        let Some(recipe) = self.table().templates.get(&id).map(|entry| entry.recipe) else { return };
        // Only these are built again.
        let rebuilt = if recipe.kind == Kind::Disk { TemplateId::BASE } else { recipe.parent };
        let outcome = match self.run_build(id, recipe) {
            Outcome::Failed(error) if error != BuildError::Interrupted && self.is_parent_damaged(rebuilt) => {
                Outcome::Waits(WAITS_FOR_PARENT)
            }
            outcome => outcome,
        };
        let mut table = self.table();
        table.end_build();
        // It was removed meanwhile.
        let Some(entry) = table.templates.get_mut(&id) else { return };
        if let Some(delay) = entry.settle(outcome) {
            self.queue.push_later(id, delay);
        }
    }

    fn run_build(&self, id: TemplateId, recipe: Recipe) -> Outcome {
        let is_disk = recipe.kind == Kind::Disk;
        let parent = if is_disk { self.snapshot_dir(recipe.parent) } else { self.parent_dir(recipe.parent) };
        let parent = match parent {
            // Kernel and guest agent are those of `base`.
            Ok(_) if is_disk && self.builder.base_dir().is_err() => return Outcome::Waits(WAITS_FOR_PARENT),
            Ok(parent) => parent,
            Err(failure) if failure.code == ErrorCode::UnknownTemplate => {
                return Outcome::Failed(BuildError::NoParent);
            }
            Err(_) => return Outcome::Waits(WAITS_FOR_PARENT),
        };
        if let Some(Err(refused)) = self.admit.get().map(|admit| admit()) {
            tracing::debug!(%refused, "the build of the template {id} waits: {refused}");
            // A caller waits for it.
            let fails = Outcome::Failed(BuildError::NoCapacity);
            return if is_disk { fails } else { Outcome::Waits(WAITS_FOR_RESOURCES) };
        }
        match self.bake(id, recipe, &parent) {
            Ok(ready) => {
                tracing::info!(dir = %ready.dir.display(), "the template {id} is built");
                Outcome::Built(ready)
            }
            Err(error) => {
                let reason = output::one_line(&error);
                tracing::error!(reason, "the template {id} could not be built: {reason}");
                Outcome::Failed(BuildError::of_process(&error))
            }
        }
    }

    fn bake(&self, id: TemplateId, recipe: Recipe, parent: &Path) -> anyhow::Result<Ready> {
        let started = |process| self.table().begin_build(id, process);
        let dir = self.builder.bake(id, recipe, parent, &started, &|step| self.report(id, step))?;
        load_template(&dir)?;
        self.remove_others(id, &dir);
        Ok(self.ready(&recipe, dir)?)
    }

    /// Shows a step of the build, unless it is only for the log. A damaged or outdated template keeps its reason.
    pub(super) fn report(&self, id: TemplateId, step: &str) {
        if !BUILD_STEPS.contains(&step) {
            return;
        }
        if let Some(Entry { phase: Phase::Building { step: current }, .. }) =
            self.table().templates.get_mut(&id)
        {
            step.clone_into(current);
        }
    }

    /// Removes what was built from other inputs, unless a VM needs it for copies. To run, VMs hold their files open.
    fn remove_others(&self, id: TemplateId, current: &Path) {
        let needed = match keys_in_use(self.shelf.parent().unwrap_or(&self.shelf)) {
            Ok(keys) => keys,
            Err(error) => {
                tracing::warn!(
                    "earlier files of the template {id} are kept, because VMs may need them: {error:#}"
                );
                return;
            }
        };
        let is_needed = |path: &Path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|key| needed.contains(key))
        };
        let Ok(entries) = fs::read_dir(self.folder(id)) else { return };
        let dirs = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir() && path != current && !is_needed(path));
        for dir in dirs {
            if let Err(error) = skep_template::shelf::remove(&dir) {
                tracing::warn!(%error, "{} could not be removed: {error}", dir.display());
            }
        }
    }

    /// Verifies the files of a parent on disk. If they are damaged, it is built again. Returns whether they are. Blocks for a
    /// fraction of a second.
    fn is_parent_damaged(&self, parent: TemplateId) -> bool {
        if parent == TemplateId::BASE {
            return self.builder.is_base_damaged();
        }
        let found = self.table().templates.get(&parent).map(|entry| match &entry.phase {
            Phase::Ready(ready) => (Some(ready.dir.clone()), entry.edition),
            _ => (None, entry.edition),
        });
        let Some((Some(dir), edition)) = found else { return false };
        match skep_template::verify(&dir) {
            Err(error @ (Error::Damaged { .. } | Error::Missing(_))) => {
                self.failure(parent, edition, error);
                true
            }
            _ => false,
        }
    }
}
