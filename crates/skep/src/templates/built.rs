//! Templates that were built from the disk of another one, in the data directory.

mod build;
mod disk;
mod load;
#[cfg(test)]
mod tests;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use skep_api::{ErrorCode, Failure, TemplateId};
use skep_keeper::{AdmitBuild, CapturedFiles, OpenTemplate, Origin};
use skep_keeper_protocol::TemplateStatus;
use skep_template::{Error, MANIFEST, Template, shelf};

use super::{
    Kind, Recipe,
    build_queue::BuildQueue,
    builder::Builder,
    entry::{Entry, Phase, Ready, Table},
    open, snapshot,
};

/// What callers read about a build that has not begun.
const WAITS_FOR_PARENT: &str = "waits until the template that it begins with is ready";

pub(super) struct BuiltTemplates(Arc<Inner>);

struct Inner {
    /// The folder that has the folders of all built templates.
    shelf: PathBuf,
    builder: Box<dyn Builder>,
    queue: BuildQueue,
    table: Mutex<Table>,
    /// Whether the machine has the memory and the disk space for a build. Set once, before the first build.
    admit: OnceLock<AdmitBuild>,
}

impl BuiltTemplates {
    pub(super) fn open(&self, id: TemplateId) -> Result<OpenTemplate, Failure> {
        let (template, edition) = self.0.loaded(id)?;
        let opened = open(&template, edition).map_err(|error| self.0.failure(id, edition, error))?;
        Ok(OpenTemplate { origin: self.0.origin_of_pause(id, &template), ..opened })
    }

    pub(super) fn check(&self, id: TemplateId, edition: u64) -> Result<(), Failure> {
        let (template, current) = self.0.loaded(id)?;
        if edition != current {
            let message = format!("the template {id} was damaged and has been built again; try again");
            return Err(Failure::new(ErrorCode::TemplateDamaged, message));
        }
        template.check().map_err(|error| self.0.failure(id, edition, error))
    }

    pub(super) fn build(&self, id: TemplateId, recipe: Recipe) -> Result<(), Failure> {
        self.0.parent_dir(recipe.parent)?;
        self.0.begin(id, recipe, BuildQueue::push)
    }

    /// Stores a snapshot of a VM.
    pub(super) fn store(
        &self,
        id: TemplateId,
        captured: &CapturedFiles<'_>,
    ) -> Result<TemplateStatus, Failure> {
        let inner = &self.0;
        let stored = || {
            let origin = inner.origin_dir(captured)?;
            let folder = inner.folder(id);
            let failed = |error: &Error| snapshot::not_stored(id, error);
            let size = snapshot::size(&origin, captured).map_err(|error| failed(&error))?;
            let recipe = Recipe::snapshot(captured.origin, size, captured.purpose);
            // Before the files: the next start removes the folder of a snapshot whose files are incomplete, and it knows a
            // snapshot by its recipe.
            recipe.write(&folder).map_err(|error| failed(&Error::io(folder.display())(error)))?;
            let dir = snapshot::write(&origin, &folder, captured).map_err(|error| failed(&error))?;
            let ready = Ready::of(dir).map_err(|error| failed(&error))?;
            let entry = Entry::new(recipe, Phase::Ready(ready));
            let status = entry.status(id);
            inner.table().templates.insert(id, entry);
            Ok(status)
        };
        stored().inspect_err(|_| {
            if inner.folder(id).is_dir() {
                inner.remove_files(id);
            }
        })
    }

    /// What the memory files of loaded templates take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let table = self.0.table();
        let loaded = table.templates.values().filter_map(|entry| match &entry.phase {
            Phase::Ready(ready) => ready.loaded.as_ref(),
            _ => None,
        });
        loaded.map(|template| template.memory_bytes()).sum()
    }

    pub(super) fn list(&self) -> Vec<TemplateStatus> {
        let table = self.0.table();
        let shown = table.templates.iter().filter(|(_, entry)| entry.recipe.kind != Kind::Disk);
        shown.map(|(id, entry)| entry.status(*id)).collect()
    }

    pub(super) fn status(&self, id: TemplateId) -> Option<TemplateStatus> {
        self.0.table().templates.get(&id).map(|entry| entry.status(id))
    }

    pub(super) fn remove(&self, id: TemplateId) -> Result<(), Failure> {
        let inner = &self.0;
        {
            let mut table = inner.table();
            if let Some(child) = table.child_of(id) {
                let message = format!("the template {child} begins with the disk of {id}; delete it first");
                return Err(Failure::new(ErrorCode::TemplateInUse, message));
            }
            if table.templates.remove(&id).is_none() {
                return Err(Failure::unknown_template(id.to_string()));
            }
            table.stop_build(id);
        }
        inner.queue.cancel(id);
        inner.queue.wait_for_end_of(id);
        inner.remove_files(id);
        Ok(())
    }
}

impl Inner {
    fn new(shelf: PathBuf, builder: Box<dyn Builder>) -> Self {
        let (queue, table, admit) = (BuildQueue::default(), Mutex::default(), OnceLock::new());
        Self { shelf, builder, queue, table, admit }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, id: TemplateId) -> PathBuf {
        self.shelf.join(id.to_string())
    }

    fn remove_files(&self, id: TemplateId) {
        let folder = self.folder(id);
        if let Err(error) = shelf::remove_name(&folder) {
            tracing::error!(%error, "{} could not be removed: {error}", folder.display());
        }
    }

    /// Writes the recipe of a template and queues its build.
    fn begin(
        &self,
        id: TemplateId,
        recipe: Recipe,
        push: impl FnOnce(&BuildQueue, TemplateId) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let folder = self.folder(id);
        recipe.write(&folder).map_err(|error| {
            tracing::error!(%error, "{} cannot be written: {error}", folder.display());
            Failure::new(ErrorCode::Internal, "the template's folder cannot be written")
        })?;
        let phase = Phase::Building { step: "waits for other builds".to_owned() };
        self.table().templates.insert(id, Entry::new(recipe, phase));
        push(&self.queue, id).inspect_err(|_| {
            self.table().templates.remove(&id);
            self.remove_files(id);
        })
    }

    /// The template that a VM was restored from at first, if this is what it is resumed from.
    fn origin_of_pause(&self, id: TemplateId, template: &Template) -> Option<Origin> {
        let recipe = self.table().templates.get(&id)?.recipe;
        let key = template.manifest.origin.clone()?;
        (recipe.kind == Kind::Pause).then_some(Origin { template: recipe.parent, key })
    }

    /// The folder of the template that a captured VM was booted from. It may have been replaced by one with other inputs
    /// since; both are there as long as nobody removes the older one.
    fn origin_dir(&self, captured: &CapturedFiles<'_>) -> Result<PathBuf, Failure> {
        let CapturedFiles { origin, origin_key, .. } = captured;
        let current = self.parent_dir(*origin).ok();
        let dir = current.and_then(|dir| Some(dir.parent()?.join(origin_key)));
        dir.filter(|dir| dir.join(MANIFEST).is_file()).ok_or_else(|| {
            let message = "the files of the template that this VM was booted from are not on the server any more; boot another VM, and \
                           take the snapshot from that";
            Failure::new(ErrorCode::TemplateNotReady, message)
        })
    }

    /// The folder with the files of a template that another one begins with.
    fn parent_dir(&self, parent: TemplateId) -> Result<PathBuf, Failure> {
        if parent == TemplateId::BASE {
            return self.builder.base_dir();
        }
        let table = self.table();
        let entry =
            table.templates.get(&parent).ok_or_else(|| Failure::unknown_template(parent.to_string()))?;
        match &entry.phase {
            Phase::Ready(ready) => Ok(ready.dir.clone()),
            _ => Err(entry.refusal(parent)),
        }
    }

    /// Loads the template, unless it is loaded. Blocks for a fraction of a second.
    fn loaded(&self, id: TemplateId) -> Result<(Arc<Template>, u64), Failure> {
        let (dir, edition) = {
            let table = self.table();
            let entry = table.templates.get(&id).ok_or_else(|| Failure::unknown_template(id.to_string()))?;
            match &entry.phase {
                Phase::Ready(Ready { loaded: Some(template), .. }) => {
                    return Ok((Arc::clone(template), entry.edition));
                }
                Phase::Ready(ready) => (ready.dir.clone(), entry.edition),
                _ => return Err(entry.refusal(id)),
            }
        };
        let template = Template::load(&dir).map_err(|error| self.failure(id, edition, error))?;
        let template = Arc::new(template);
        let mut table = self.table();
        // It may have been removed meanwhile.
        let entry = table.templates.get_mut(&id).ok_or_else(|| Failure::unknown_template(id.to_string()))?;
        if let Phase::Ready(ready) = &mut entry.phase
            && entry.edition == edition
        {
            let template = ready.loaded.get_or_insert(template);
            return Ok((Arc::clone(template), edition));
        }
        Err(Failure::new(ErrorCode::TemplateNotReady, format!("the template {id} has changed; try again")))
    }

    /// The error for a caller, without paths. A damaged template is built again.
    fn failure(&self, id: TemplateId, edition: u64, error: Error) -> Failure {
        let reason = match &error {
            Error::Damaged { reason, .. } | Error::Outdated { reason, .. } => reason.clone(),
            Error::Missing(_) => "its files are missing".to_owned(),
            Error::Io { .. } => {
                tracing::error!(%error, "the template {id} cannot be used: {error}");
                let message =
                    format!("the template {id} cannot be used now; the log of the server has the reason");
                return Failure::new(error.code(), message);
            }
        };
        let mut table = self.table();
        let Some(entry) = table.templates.get_mut(&id) else {
            return Failure::unknown_template(id.to_string());
        };
        if entry.edition == edition && matches!(entry.phase, Phase::Ready(_)) {
            entry.phase = Phase::Damaged { reason };
            entry.edition += 1;
            if entry.recipe.kind != Kind::Build {
                tracing::error!(%error, "{error}; no VM is booted from it any more");
            } else {
                tracing::error!(%error, "{error}; it is built again, and no VM is booted from it before");
                self.queue.push_again(id);
            }
        }
        let refusal = entry.refusal(id);
        Failure::new(ErrorCode::TemplateDamaged, refusal.message)
    }
}
