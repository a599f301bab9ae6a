//! What builds templates: a bake in a process of its own, from the folder of the parent.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::{Failure, TemplateId, swarm::BASE_TEMPLATE};
use skep_image::TemplateBuilder;
use skep_template::{TemplateFile, shelf::template_dir};

use super::{Kind, Recipe, base::BaseTemplate};
use crate::bake_process;

/// Builds templates, and knows `base`.
pub(super) trait Builder: Send + Sync {
    /// Builds a template from the files in the folder `parent`, and returns its folder. `started` gets the pidfd of the
    /// process, `report` each step. Blocks.
    fn bake(
        &self,
        id: TemplateId,
        recipe: Recipe,
        parent: &Path,
        started: &dyn Fn(OwnedFd),
        report: &dyn Fn(&str),
    ) -> anyhow::Result<PathBuf>;

    /// The folder of `base`. Fails while it is baked: with `template_damaged` because its files changed, else with
    /// `template_not_ready`.
    fn base_dir(&self) -> Result<PathBuf, Failure>;

    /// The folder for the files of `base` that were baked from the inputs with this key. They need not be there.
    fn base_dir_of(&self, key: &str) -> PathBuf;

    /// Why the memory of a VM that was booted from the template in this folder cannot be loaded on this machine, as the end of a
    /// sentence about that boot. `None` if it can.
    fn difference_of_state(&self, dir: &Path) -> Result<Option<String>, skep_image::Error>;

    /// The files that a template has in common with the one that it was made from.
    fn shared_files(&self, recipe: &Recipe) -> &'static [TemplateFile];

    /// Verifies the files of `base` on disk, and bakes it again if they are damaged. Returns whether they are. Blocks.
    fn is_base_damaged(&self) -> bool;
}

/// Builds by this binary.
pub(super) struct BakeProcesses {
    pub(super) template_builder: TemplateBuilder,
    /// The folder that has the folders of all built templates.
    pub(super) shelf: PathBuf,
    pub(super) base: Arc<BaseTemplate>,
}

impl BakeProcesses {
    pub(super) fn template_builder(&self, id: TemplateId, recipe: Recipe, parent: &Path) -> TemplateBuilder {
        recipe.template_builder(&self.template_builder, &self.shelf, id, parent.to_owned(), None)
    }

    /// The folder with kernel and guest agent, if they are not the parent's: those of a snapshot may be too old for this
    /// server.
    fn system(&self, recipe: Recipe) -> anyhow::Result<Option<PathBuf>> {
        Ok(if recipe.kind == Kind::Disk { Some(self.base.dir()?) } else { None })
    }
}

impl Builder for BakeProcesses {
    fn bake(
        &self,
        id: TemplateId,
        recipe: Recipe,
        parent: &Path,
        started: &dyn Fn(OwnedFd),
        report: &dyn Fn(&str),
    ) -> anyhow::Result<PathBuf> {
        let system = self.system(recipe)?;
        let template_builder =
            recipe.template_builder(&self.template_builder, &self.shelf, id, parent.to_owned(), system);
        bake_process::run(&template_builder, started, report)
    }

    fn base_dir(&self) -> Result<PathBuf, Failure> {
        self.base.dir()
    }

    fn base_dir_of(&self, key: &str) -> PathBuf {
        template_dir(&self.template_builder.image_dir, BASE_TEMPLATE, key)
    }

    fn difference_of_state(&self, dir: &Path) -> Result<Option<String>, skep_image::Error> {
        self.template_builder.difference_of_snapshot(dir)
    }

    fn shared_files(&self, recipe: &Recipe) -> &'static [TemplateFile] {
        recipe.shared_files(&self.shelf, &self.template_builder.image_dir)
    }

    fn is_base_damaged(&self) -> bool {
        self.base.is_damaged_on_disk()
    }
}
