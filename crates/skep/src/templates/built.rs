//! Templates that were built from the disk of another one, in the data directory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};

use anyhow::Context;
use skep_api::{ErrorCode, Failure, TemplateId};
use skep_image::{BUILD_STEPS, Bakery, load_template};
use skep_keeper::{AdmitBuild, CapturedFiles, OpenTemplate, Origin};
use skep_keeper_protocol::TemplateStatus;
use skep_template::{Error, MANIFEST, Template, shelf};

use super::{
    Kind, Recipe,
    base::BaseTemplate,
    build_error::{BuildError, public_reason},
    build_queue::BuildQueue,
    builder::{BakeProcesses, Builder},
    built_templates,
    entry::{Entry, Outcome, Phase, Ready, Table},
    keys_in_use, open, remove_without_recipe, snapshot,
};
use crate::output;

/// What callers read about a build that has not begun.
const WAITS_FOR_PARENT: &str = "waits until the template that it begins with is ready";
const WAITS_FOR_RESOURCES: &str = "waits until the server has memory and disk space for a build";

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
    pub(super) fn load(bakery: Bakery, shelf: PathBuf, base: Arc<BaseTemplate>) -> anyhow::Result<Self> {
        let processes =
            BakeProcesses { bakery: bakery.clone(), shelf: shelf.clone(), base: Arc::clone(&base) };
        let inner = Arc::new(Inner::new(shelf.clone(), Box::new(processes)));
        let processes = BakeProcesses { bakery, shelf, base };
        remove_without_recipe(&inner.shelf).context("the folders of templates cannot be cleaned up")?;
        for (id, recipe) in built_templates(&inner.shelf).context("the built templates cannot be listed")? {
            let found = match recipe.kind {
                Kind::Build => Some(inner.find(&processes, id, recipe)),
                Kind::Snapshot | Kind::Pause => inner.find_snapshot(&processes.bakery, id),
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

    /// Starts the thread that builds.
    pub(super) fn begin_builds(&self, admit: AdmitBuild) {
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

    /// The state of a template on disk.
    fn find(&self, processes: &BakeProcesses, id: TemplateId, recipe: Recipe) -> Phase {
        let Ok(parent) = self.parent_dir(recipe.parent) else {
            return Phase::Outdated { reason: WAITS_FOR_PARENT.to_owned() };
        };
        let bakery = processes.bakery(id, recipe, &parent);
        let found = || -> Result<Phase, skep_image::Error> {
            if let Some(dir) = bakery.locate()? {
                return Ok(Phase::Ready(Ready::of(dir)?));
            }
            Ok(match bakery.difference()? {
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
    fn find_snapshot(&self, bakery: &Bakery, id: TemplateId) -> Option<Phase> {
        let found = snapshot::find(&self.folder(id)).inspect_err(|error| {
            tracing::error!(%error, "the snapshot {id} cannot be read: {error}");
        });
        let dir = found.ok()??;
        let check = || -> Result<Phase, skep_image::Error> {
            Ok(match bakery.difference_of_snapshot(&dir)? {
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
        if let Some(Entry { phase: Phase::Ready(ready), edition: current, .. }) = table.templates.get_mut(&id)
            && *current == edition
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

    /// Builds a template, and stores the outcome. Blocks for some seconds.
    fn build(&self, id: TemplateId) {
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
        Ok(Ready::of(dir)?)
    }

    /// Shows a step of the build, unless it is only for the log. A damaged or outdated template keeps its reason.
    fn report(&self, id: TemplateId, step: &str) {
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
}

mod disk;
#[cfg(test)]
mod tests;
