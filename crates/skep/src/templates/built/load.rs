//! The built templates that a data directory has when the keeper starts.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use skep_api::TemplateId;
use skep_image::TemplateBuilder;
use skep_template::shelf::Footprint;

use super::{
    super::{
        base::BaseTemplate, build_error::public_reason, builder::BakeProcesses, built_templates,
        protect_folders, remove_without_recipe, snapshot, snapshot_dir,
    },
    BuiltTemplates, Entry, Inner, Kind, Phase, Recipe, WAITS_FOR_PARENT,
};
use crate::output;

impl BuiltTemplates {
    pub(in super::super) fn load(
        template_builder: TemplateBuilder,
        shelf: PathBuf,
        base: Arc<BaseTemplate>,
    ) -> anyhow::Result<Self> {
        let processes = BakeProcesses {
            template_builder: template_builder.clone(),
            shelf: shelf.clone(),
            base: Arc::clone(&base),
        };
        let inner = Arc::new(Inner::new(shelf.clone(), Box::new(processes)));
        let processes = BakeProcesses { template_builder, shelf, base };
        remove_without_recipe(&inner.shelf).context("the folders of templates cannot be cleaned up")?;
        protect_folders(&inner.shelf);
        for (id, recipe) in built_templates(&inner.shelf).context("the built templates cannot be listed")? {
            let found = match recipe.kind {
                Kind::Build => Some(inner.find(&processes, id, recipe)),
                Kind::Snapshot | Kind::Pause => inner.find_snapshot(&processes.template_builder, id, &recipe),
                Kind::Disk => inner.find_disk(id),
            };
            let Some(phase) = found else {
                inner.remove_files(id);
                continue;
            };
            let is_ready = matches!(phase, Phase::Ready(_));
            let entry = if recipe.is_snapshot() {
                Entry::of_snapshot(recipe, phase, inner.files_of_snapshot(id, &recipe))
            } else {
                Entry::new(recipe, phase)
            };
            inner.table().templates.insert(id, entry);
            if !is_ready && recipe.kind == Kind::Build {
                inner.queue.push_again(id);
            }
        }
        Ok(Self(inner))
    }
}

impl Inner {
    /// The state of a template on disk.
    fn find(&self, processes: &BakeProcesses, id: TemplateId, recipe: Recipe) -> Phase {
        let Ok(parent) = self.parent_dir(recipe.parent) else {
            return Phase::Outdated { reason: WAITS_FOR_PARENT.to_owned() };
        };
        let template_builder = processes.template_builder(id, recipe, &parent);
        let found = || -> Result<Phase, skep_image::Error> {
            if let Some(dir) = template_builder.locate()? {
                return Ok(Phase::Ready(self.ready(&recipe, dir)?));
            }
            Ok(match template_builder.difference()? {
                Some(difference) => {
                    tracing::warn!("the template {id} was built {difference}: it is built again");
                    Phase::Outdated { reason: format!("built {difference}") }
                }
                None => Phase::Building { step: "the build was interrupted, and begins again".to_owned() },
            })
        };
        found().unwrap_or_else(|error| {
            let reason = public_reason(&error);
            let log_reason = output::one_line(&error.into());
            tracing::warn!(log_reason, "the template {id} cannot be used and is built again: {log_reason}");
            Phase::Outdated { reason }
        })
    }

    /// The state of a snapshot on disk. `None` if it was not written completely.
    fn find_snapshot(
        &self,
        template_builder: &TemplateBuilder,
        id: TemplateId,
        recipe: &Recipe,
    ) -> Option<Phase> {
        let dir = match self.find_files(id)? {
            Ok(dir) => dir,
            Err(unreadable) => return Some(unreadable),
        };
        let check = || -> Result<Phase, skep_image::Error> {
            Ok(match template_builder.difference_of_snapshot(&dir)? {
                Some(difference) => snapshot::outdated(id, &difference),
                None => Phase::Ready(self.ready(recipe, dir.clone())?),
            })
        };
        Some(check().unwrap_or_else(|error| {
            let reason = public_reason(&error);
            tracing::error!(%error, "the snapshot {id} cannot be used: {error}");
            Phase::Damaged { reason }
        }))
    }

    /// The folder with the files of a template that cannot be built again. `None` if it was not written completely. If that cannot be
    /// read, the template is damaged until the next start: it is not removed, because its files may be complete.
    pub(super) fn find_files(&self, id: TemplateId) -> Option<Result<PathBuf, Phase>> {
        let found = snapshot::find(&self.folder(id)).map_err(|error| {
            tracing::error!(%error, "the files of the template {id} cannot be read: {error}");
            Phase::Damaged { reason: "its files cannot be read".to_owned() }
        });
        found.transpose()
    }

    /// The space of the files of a snapshot, which stay on disk also if its memory cannot be used.
    fn files_of_snapshot(&self, id: TemplateId, recipe: &Recipe) -> Option<Footprint> {
        let dir = snapshot_dir(&self.shelf, id)?;
        Footprint::of(&dir, self.builder.shared_files(recipe))
            .inspect_err(
                |error| tracing::warn!(%error, "the size of the snapshot {id} is not known: {error}"),
            )
            .ok()
    }
}
