//! The built templates that a data directory has when the keeper starts.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use skep_api::TemplateId;
use skep_image::TemplateBuilder;

use super::{
    super::{
        base::BaseTemplate, build_error::public_reason, builder::BakeProcesses, built_templates,
        remove_without_recipe, snapshot,
    },
    BuiltTemplates, Entry, Inner, Kind, Phase, Ready, Recipe, WAITS_FOR_PARENT,
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
        for (id, recipe) in built_templates(&inner.shelf).context("the built templates cannot be listed")? {
            let found = match recipe.kind {
                Kind::Build => Some(inner.find(&processes, id, recipe)),
                Kind::Snapshot | Kind::Pause => inner.find_snapshot(&processes.template_builder, id),
                Kind::Disk => inner.find_disk(id),
            };
            let Some(phase) = found else {
                inner.remove_files(id);
                continue;
            };
            let is_ready = matches!(phase, Phase::Ready(_));
            inner.table().templates.insert(id, Entry::new(recipe, phase));
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
                return Ok(Phase::Ready(Ready::of(dir)?));
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
    fn find_snapshot(&self, template_builder: &TemplateBuilder, id: TemplateId) -> Option<Phase> {
        let found = snapshot::find(&self.folder(id)).inspect_err(|error| {
            tracing::error!(%error, "the snapshot {id} cannot be read: {error}");
        });
        let dir = found.ok()??;
        let check = || -> Result<Phase, skep_image::Error> {
            Ok(match template_builder.difference_of_snapshot(&dir)? {
                Some(difference) => {
                    tracing::warn!(
                        "the snapshot {id} is outdated, and its memory cannot be used: its VM was booted {difference}"
                    );
                    Phase::Outdated { reason: format!("its VM was booted {difference}") }
                }
                None => Phase::Ready(Ready::of(dir.clone())?),
            })
        };
        Some(check().unwrap_or_else(|error| {
            let reason = public_reason(&error);
            tracing::error!(%error, "the snapshot {id} cannot be used: {error}");
            Phase::Damaged { reason }
        }))
    }
}
