//! The templates of the keeper: `base`, and those that were built from other ones.

mod base;
mod build_error;
mod build_queue;
mod builder;
mod built;
mod entry;
mod idle_time;
mod recipe;
mod snapshot;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::{ErrorCode, Failure, TemplateId, templates::GuestSize};
use skep_engine::Delta;
use skep_image::TemplateBuilder;
use skep_keeper::{
    AdmitBuild, AdmitLoad, CapturedFiles, FileId, OpenTemplate, Templates, template_keys_of_vms,
};
use skep_keeper_protocol::TemplateStatus;
use skep_template::{Template, TemplateFile};

use base::BaseTemplate;
pub(crate) use build_error::BuildError;
use built::BuiltTemplates;
pub(crate) use recipe::{Kind, Recipe, built_templates};
use recipe::{protect_folders, remove_without_recipe};

/// It is the image directory too, unless that is set.
const DIRECTORY: &str = "templates";

/// The directory of built templates in a data directory.
pub(crate) fn shelf_of(data_dir: &Path) -> PathBuf {
    data_dir.join(DIRECTORY)
}

/// The folder with the files of a snapshot. `None` if it is not complete or cannot be read.
pub(crate) fn snapshot_dir(shelf: &Path, id: TemplateId) -> Option<PathBuf> {
    snapshot::find(&shelf.join(id.to_string())).ok().flatten()
}

/// The keys of the templates that VMs of this data directory need: without their files no copy of those VMs can be stored.
///
/// # Errors
/// The templates or the records of VMs cannot be read.
pub(crate) fn keys_in_use(data_dir: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut keys = snapshot::origin_keys(&shelf_of(data_dir))?;
    keys.extend(template_keys_of_vms(data_dir)?);
    Ok(keys)
}

/// All templates.
pub(crate) struct Shelf {
    base: Arc<BaseTemplate>,
    built: BuiltTemplates,
}

impl Shelf {
    /// Loads `base`, and bakes it first if needed, which blocks for a minute or more. Queues the builds of the other
    /// templates that need one.
    ///
    /// # Errors
    /// A template cannot be read. With `vms_run`, VMs of an earlier keeper run, and a failure to load or bake `base` is not an error:
    /// it would end these VMs, which do not need `base`.
    pub(crate) fn load(
        template_builder: &TemplateBuilder,
        data_dir: &Path,
        vms_run: bool,
    ) -> anyhow::Result<Self> {
        let base = if vms_run {
            BaseTemplate::find(template_builder)?
        } else {
            BaseTemplate::load(template_builder)?
        };
        let built = BuiltTemplates::load(template_builder.clone(), shelf_of(data_dir), Arc::clone(&base))?;
        Ok(Self { base, built })
    }
}

impl Templates for Shelf {
    fn open(&self, template: TemplateId, admit: &AdmitLoad<'_>) -> Result<OpenTemplate, Failure> {
        if template == TemplateId::BASE { self.base.open(admit) } else { self.built.open(template, admit) }
    }

    fn check(&self, template: TemplateId, edition: u64) -> Result<(), Failure> {
        if template == TemplateId::BASE {
            self.base.check(edition)
        } else {
            self.built.check(template, edition)
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.base.memory_bytes() + self.built.memory_bytes()
    }

    fn deltas(&self) -> Vec<FileId> {
        // Only built templates can be snapshots, and only snapshots have a delta.
        self.built.deltas()
    }

    fn unload_unused(&self, in_use: &BTreeSet<TemplateId>) {
        // `base` stays once it is loaded: nearly every boot begins with it or with one of its children.
        self.built.unload_unused(in_use);
    }

    fn begin_builds(&self, admit: AdmitBuild) {
        self.built.begin_builds(admit);
    }

    fn build(&self, template: TemplateId, parent: TemplateId, size: GuestSize) -> Result<(), Failure> {
        self.built.build(template, Recipe::build(parent, size))
    }

    fn boot_disk(&self, template: TemplateId, snapshot: TemplateId) -> Result<(), Failure> {
        self.built.boot_disk(template, snapshot)
    }

    fn status(&self, template: TemplateId) -> Option<TemplateStatus> {
        if template == TemplateId::BASE { Some(self.base.status()) } else { self.built.status(template) }
    }

    fn store(&self, template: TemplateId, captured: CapturedFiles<'_>) -> Result<TemplateStatus, Failure> {
        self.built.store(template, &captured)
    }

    fn check_copy(&self, origin: TemplateId, key: &str) -> Result<(), Failure> {
        self.built.check_copy(origin, key)
    }

    fn list(&self) -> Vec<TemplateStatus> {
        // Its id is the smallest.
        std::iter::once(self.base.status()).chain(self.built.list()).collect()
    }

    fn remove(&self, template: TemplateId) -> Result<(), Failure> {
        if template == TemplateId::BASE {
            let message = "the template `base` cannot be deleted: other templates begin with it";
            return Err(Failure::new(ErrorCode::TemplateProtected, message));
        }
        self.built.remove(template)
    }
}

/// Opens all files of a template for one VM.
fn open(template: &Template, edition: u64) -> Result<OpenTemplate, skep_template::Error> {
    let delta = if template.manifest.is_snapshot() {
        let (data, pages) = (template.open(TemplateFile::Delta)?, template.open(TemplateFile::Pages)?);
        Some(Delta { data, pages })
    } else {
        None
    };
    Ok(OpenTemplate {
        key: template.manifest.key.clone(),
        edition,
        vcpus: template.manifest.vcpus,
        memory_mb: template.manifest.memory_mb,
        ram: template.ram()?,
        ram_sha256: template.manifest.sha256.get(&TemplateFile::Ram).cloned(),
        kernel: template.open(TemplateFile::Kernel)?,
        initrd: template.open(TemplateFile::Initrd)?,
        root: template.open(TemplateFile::Root)?,
        state: template.open(TemplateFile::State)?,
        layer: template.open(TemplateFile::Layer)?,
        delta,
        origin: None,
    })
}
