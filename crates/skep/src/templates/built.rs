//! Templates that were built from the disk of another one, in the data directory.

mod build;
mod disk;
mod load;
#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use skep_api::{ErrorCode, Failure, TemplateId};
use skep_keeper::{AdmitBuild, AdmitLoad, CapturedFiles, FileId, MemoryAdmission, OpenTemplate, Origin};
use skep_keeper_protocol::TemplateStatus;
use skep_template::{Error, MANIFEST, Template, TemplateFile, read_manifest, shelf};

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
    pub(super) fn open(&self, id: TemplateId, admit: &AdmitLoad<'_>) -> Result<OpenTemplate, Failure> {
        let (template, edition) = self.0.loaded(id, admit)?;
        let opened = open(&template, edition).map_err(|error| self.0.failure(id, edition, error))?;
        Ok(OpenTemplate { origin: self.0.origin_of_pause(id, &template), ..opened })
    }

    pub(super) fn check(&self, id: TemplateId, edition: u64) -> Result<(), Failure> {
        // The VM that it is checked for was admitted when it was launched.
        let (template, current) = self.0.loaded(id, &|_| Ok(MemoryAdmission::default()))?;
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
            tracing::debug!("the recipe of the snapshot {id} is written");
            let dir = snapshot::write(&origin, &folder, captured).map_err(|error| failed(&error))?;
            tracing::debug!("the files of the snapshot {id} are complete");
            let ready = inner.ready(&recipe, dir).map_err(|error| failed(&error))?;
            let files = ready.footprint;
            let phase = match inner.difference_of_state(&origin)? {
                Some(difference) => snapshot::outdated(id, &difference),
                None => Phase::Ready(ready),
            };
            let entry = Entry::of_snapshot(recipe, phase, Some(files));
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

    /// Checks that a capture of a VM that was booted from the template with this key can be loaded on this machine.
    pub(super) fn check_copy(&self, origin: TemplateId, key: &str) -> Result<(), Failure> {
        let dir = self.0.dir_with_key(origin, key);
        // A copy needs none of these files, and without them nothing tells what the VM was booted by.
        if !dir.join(MANIFEST).is_file() {
            return Ok(());
        }
        let Some(difference) = self.0.difference_of_state(&dir)? else { return Ok(()) };
        let message = format!(
            "the VM was booted {difference}: a copy of its memory cannot be loaded, so the VM is not forked; boot another VM, or take a \
             snapshot of this one and boot it without its memory (`\"memory\": false`), which has its files and not its programs"
        );
        Err(Failure::new(ErrorCode::TemplateNotReady, message))
    }

    /// What the memory files of loaded templates take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.table().loaded().map(|template| template.memory_bytes()).sum()
    }

    /// The memory files with the pages of loaded snapshots.
    pub(super) fn deltas(&self) -> Vec<FileId> {
        let delta = |template: &Arc<Template>| FileId::of(template.delta()?).ok();
        self.0.table().loaded().filter_map(delta).collect()
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

    /// The phase of a template whose files are in this folder.
    fn ready(&self, recipe: &Recipe, dir: PathBuf) -> Result<Ready, Error> {
        Ready::of(dir, self.builder.shared_files(recipe))
    }

    /// The template that a VM was restored from at first, if this is what it is resumed from.
    fn origin_of_pause(&self, id: TemplateId, template: &Template) -> Option<Origin> {
        let recipe = self.table().templates.get(&id)?.recipe;
        let key = template.manifest.origin.clone()?;
        (recipe.kind == Kind::Pause).then_some(Origin { template: recipe.parent, key })
    }

    /// The folder with the files that a captured VM was booted from. They stay on disk when an update makes their template
    /// outdated or builds it with other inputs, unless somebody deletes them.
    fn origin_dir(&self, captured: &CapturedFiles<'_>) -> Result<PathBuf, Failure> {
        let CapturedFiles { origin, origin_key, origin_ram, .. } = captured;
        if self.is_damaged(*origin) {
            let message = "the files of the template that this VM was booted from are damaged; boot another VM, and take the \
                           snapshot from that";
            return Err(Failure::new(ErrorCode::TemplateNotReady, message));
        }
        let dir = self.dir_with_key(*origin, origin_key);
        if !dir.join(MANIFEST).is_file() || is_other_bake(&dir, *origin_ram) {
            let message = "the files of the template that this VM was booted from are not on the server any more; boot another VM, and \
                           take the snapshot from that";
            return Err(Failure::new(ErrorCode::TemplateNotReady, message));
        }
        Ok(dir)
    }

    /// Why the memory of a VM that was booted from the template in this folder cannot be loaded on this machine. The VM may have
    /// a VMM that was started before an update of the engine.
    fn difference_of_state(&self, origin: &Path) -> Result<Option<String>, Failure> {
        self.builder.difference_of_state(origin).map_err(|error| {
            tracing::error!(%error, "whether a VM can be copied is not known: {error}");
            let message = "the template that this VM was booted from cannot be read; the log of the server has the reason";
            Failure::new(ErrorCode::TemplateNotReady, message)
        })
    }

    /// The folder for the files that were made from the inputs with this key.
    fn dir_with_key(&self, id: TemplateId, key: &str) -> PathBuf {
        if id == TemplateId::BASE { self.builder.base_dir_of(key) } else { self.folder(id).join(key) }
    }

    /// Whether damage was found in the files of a template and it has not been built again since. Its folder may get other
    /// files at any time.
    fn is_damaged(&self, id: TemplateId) -> bool {
        if id == TemplateId::BASE {
            // It may also be missing because its first bake failed; the files that VMs began with are whole then.
            return self.builder.base_dir().is_err_and(|failure| failure.code == ErrorCode::TemplateDamaged);
        }
        let table = self.table();
        table.templates.get(&id).is_some_and(|entry| matches!(entry.phase, Phase::Damaged { .. }))
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
    fn loaded(&self, id: TemplateId, admit: &AdmitLoad<'_>) -> Result<(Arc<Template>, u64), Failure> {
        let (Ready { loaded, loading, .. }, edition) = self.ready_edition(id)?;
        if let Some(template) = loaded {
            return Ok((template, edition));
        }
        // One load of a template at a time: its memory is admitted and taken once, however many VMs begin with it.
        let _loading = loading.lock().unwrap_or_else(PoisonError::into_inner);
        let (Ready { loaded, dir, .. }, edition) = self.ready_edition(id)?;
        match loaded {
            Some(template) => Ok((template, edition)),
            None => self.load(id, &dir, edition, admit),
        }
    }

    /// The template with its edition, if VMs can be restored from it.
    fn ready_edition(&self, id: TemplateId) -> Result<(Ready, u64), Failure> {
        let table = self.table();
        let entry = table.templates.get(&id).ok_or_else(|| Failure::unknown_template(id.to_string()))?;
        match &entry.phase {
            Phase::Ready(ready) => Ok((ready.clone(), entry.edition)),
            _ => Err(entry.refusal(id)),
        }
    }

    /// Loads the files in the folder of this edition.
    fn load(
        &self,
        id: TemplateId,
        dir: &Path,
        edition: u64,
        admit: &AdmitLoad<'_>,
    ) -> Result<(Arc<Template>, u64), Failure> {
        let unusable = |error| self.failure(id, edition, error);
        // Until the files are in memory: only then does the machine count them as taken.
        let admission = admit(skep_template::bytes_to_load(dir).map_err(unusable)?)?;
        let template = Arc::new(Template::load(dir).map_err(unusable)?);
        drop(admission);
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

/// Whether the files in this folder come from another bake than the one with this guest memory. A new bake from the same inputs
/// replaces the files in the same folder, and its memory differs, so the changed pages of an earlier VM do not fit it.
fn is_other_bake(dir: &Path, ram: Option<&str>) -> bool {
    let Some(ram) = ram else { return false };
    // A manifest that cannot be read is an error of the snapshot, which reads it again.
    let baked = read_manifest(dir).ok().and_then(|manifest| manifest.sha256.get(&TemplateFile::Ram).cloned());
    baked.is_some_and(|baked| baked != ram)
}
