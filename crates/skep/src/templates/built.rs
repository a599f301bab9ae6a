//! Templates that were built from the disk of another one, in the data directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use anyhow::Context;
use rustix::process::{Signal, pidfd_send_signal};
use skep_api::{ErrorCode, Failure, TemplateId};
use skep_image::{Bakery, load_template};
use skep_keeper::OpenTemplate;
use skep_keeper_protocol::{TemplateState, TemplateStatus};
use skep_template::{Error, Template, shelf::Footprint};

use super::{
    Recipe, base::BaseTemplate, build_queue::BuildQueue, built_templates, idle_time::IdleTime, open,
};
use crate::{bake_process, output};

pub(super) struct BuiltTemplates(Arc<Inner>);

struct Inner {
    bakery: Bakery,
    /// The folder that has the folders of all built templates.
    shelf: PathBuf,
    base: Arc<BaseTemplate>,
    queue: BuildQueue,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    templates: BTreeMap<TemplateId, Entry>,
    /// The process of the build that runs.
    builder: Option<(TemplateId, OwnedFd)>,
}

struct Entry {
    recipe: Recipe,
    edition: u64,
    phase: Phase,
}

enum Phase {
    Building { step: String },
    Ready(Ready),
    Failed(Failure),
    Damaged { reason: String },
    Outdated { reason: String },
}

#[derive(Clone)]
struct Ready {
    dir: PathBuf,
    key: String,
    footprint: Footprint,
    /// Loaded and verified at its use, until none has followed for a minute.
    loaded: Option<Arc<Template>>,
    idle: IdleTime,
}

impl BuiltTemplates {
    pub(super) fn load(bakery: Bakery, shelf: PathBuf, base: Arc<BaseTemplate>) -> anyhow::Result<Self> {
        let inner =
            Arc::new(Inner { bakery, shelf, base, queue: BuildQueue::default(), table: Mutex::default() });
        for (id, recipe) in built_templates(&inner.shelf).context("the built templates cannot be listed")? {
            let phase = inner.find(id, recipe);
            let is_ready = matches!(phase, Phase::Ready(_));
            inner.table().templates.insert(id, Entry { recipe, edition: 0, phase });
            if !is_ready {
                inner.queue.push_again(id);
            }
        }
        let builder = Arc::clone(&inner);
        thread::Builder::new().name("build".to_owned()).spawn(move || {
            loop {
                let id = builder.queue.next();
                builder.build(id);
                builder.queue.finish();
            }
        })?;
        Ok(Self(inner))
    }

    pub(super) fn open(&self, id: TemplateId) -> Result<OpenTemplate, Failure> {
        let (template, edition) = self.0.loaded(id)?;
        open(&template, edition).map_err(|error| self.0.failure(id, edition, error))
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
        let inner = &self.0;
        inner.parent_dir(recipe.parent)?;
        let folder = inner.folder(id);
        recipe.write(&folder).map_err(|error| {
            tracing::error!(%error, "{} cannot be written: {error}", folder.display());
            Failure::new(ErrorCode::Internal, "the template's folder cannot be written")
        })?;
        let phase = Phase::Building { step: "waits for other builds".to_owned() };
        inner.table().templates.insert(id, Entry { recipe, edition: 0, phase });
        inner.queue.push(id).inspect_err(|_| {
            inner.table().templates.remove(&id);
            inner.remove_files(id);
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

    /// Drops the memory files of templates that no VM has used for a minute.
    pub(super) fn unload_unused(&self, in_use: &BTreeSet<TemplateId>) {
        let now = Instant::now();
        let mut unused = Vec::new();
        for (id, entry) in &mut self.0.table().templates {
            let Phase::Ready(ready) = &mut entry.phase else { continue };
            if ready.loaded.is_some() && ready.idle.is_over(in_use.contains(id), now) {
                tracing::debug!("the template {id} is dropped from memory, because no VM uses it");
                unused.extend(ready.loaded.take());
                ready.idle = IdleTime::default();
            }
        }
        // Without the lock: the kernel frees hundreds of megabytes.
        drop(unused);
    }

    pub(super) fn list(&self) -> Vec<TemplateStatus> {
        let table = self.0.table();
        table.templates.iter().map(|(id, entry)| entry.status(*id)).collect()
    }

    pub(super) fn remove(&self, id: TemplateId) -> Result<(), Failure> {
        let inner = &self.0;
        {
            let mut table = inner.table();
            if let Some((child, _)) = table.templates.iter().find(|(_, entry)| entry.recipe.parent == id) {
                let message = format!("the template {child} begins with the disk of {id}; delete it first");
                return Err(Failure::new(ErrorCode::TemplateInUse, message));
            }
            if table.templates.remove(&id).is_none() {
                return Err(Failure::unknown_template(id.to_string()));
            }
            if let Some((_, process)) = table.builder.as_ref().filter(|(building, _)| *building == id) {
                // Fails only if it has ended. It removes what it made.
                let _ = pidfd_send_signal(process, Signal::TERM);
            }
        }
        inner.queue.cancel(id);
        inner.queue.wait_for_end_of(id);
        inner.remove_files(id);
        Ok(())
    }
}

impl Entry {
    fn status(&self, template: TemplateId) -> TemplateStatus {
        let state = match &self.phase {
            Phase::Building { step } => TemplateState::Building { step: step.clone() },
            Phase::Ready(Ready { key, footprint, .. }) => {
                TemplateState::Ready { key: key.clone(), size_bytes: footprint.all, own_bytes: footprint.own }
            }
            Phase::Failed(failure) => TemplateState::Failed { failure: failure.clone() },
            Phase::Damaged { reason } => TemplateState::Damaged { reason: reason.clone() },
            Phase::Outdated { reason } => TemplateState::Outdated { reason: reason.clone() },
        };
        let Recipe { parent, size } = self.recipe;
        TemplateStatus { template, parent: Some(parent), size, state }
    }

    /// Why no VM can be restored from it now.
    fn refusal(&self, id: TemplateId) -> Failure {
        let (code, message) = match &self.phase {
            Phase::Ready(_) | Phase::Building { .. } => (
                ErrorCode::TemplateNotReady,
                format!("the template {id} is being built; try again in a minute"),
            ),
            Phase::Failed(failure) => (ErrorCode::TemplateNotReady, failure.message.clone()),
            Phase::Outdated { reason } => (
                ErrorCode::TemplateNotReady,
                format!(
                    "the template {id} was built {reason}, and is being built again; try again in a minute"
                ),
            ),
            Phase::Damaged { reason } => (
                ErrorCode::TemplateDamaged,
                format!(
                    "the template {id} is damaged ({reason}) and is being built again; try again in a minute"
                ),
            ),
        };
        Failure::new(code, message)
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, id: TemplateId) -> PathBuf {
        self.shelf.join(id.to_string())
    }

    fn remove_files(&self, id: TemplateId) {
        let folder = self.folder(id);
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::error!(%error, "{} could not be removed: {error}", folder.display());
        }
    }

    /// The state of a template on disk.
    fn find(&self, id: TemplateId, recipe: Recipe) -> Phase {
        let found = || -> anyhow::Result<Phase> {
            let parent =
                self.parent_dir(recipe.parent).map_err(|failure| anyhow::anyhow!(failure.message))?;
            let bakery = recipe.bakery(&self.bakery, &self.shelf, id, parent);
            if let Some(dir) = bakery.locate()? {
                return Ok(Phase::Ready(Ready::of(dir)?));
            }
            Ok(match bakery.difference()? {
                Some(difference) => {
                    tracing::warn!("the template {id} was built {difference}: it is built again");
                    Phase::Outdated { reason: difference }
                }
                None => Phase::Building { step: "the build was interrupted, and begins again".to_owned() },
            })
        };
        found().unwrap_or_else(|error| {
            let reason = output::one_line(&error);
            tracing::warn!(reason, "the template {id} cannot be used and is built again: {reason}");
            Phase::Outdated { reason }
        })
    }

    /// The folder with the files of a template that another one begins with.
    fn parent_dir(&self, parent: TemplateId) -> Result<PathBuf, Failure> {
        if parent == TemplateId::BASE {
            return Ok(self.base.dir());
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
        let (Error::Damaged { reason, .. } | Error::Outdated { reason, .. }) = &error else {
            return Failure::new(error.code(), format!("the template {id} cannot be used: {error}"));
        };
        let mut table = self.table();
        let Some(entry) = table.templates.get_mut(&id) else {
            return Failure::unknown_template(id.to_string());
        };
        if entry.edition == edition && matches!(entry.phase, Phase::Ready(_)) {
            tracing::error!(%error, "{error}; it is built again, and no VM is booted from it before");
            entry.phase = Phase::Damaged { reason: reason.clone() };
            entry.edition += 1;
            self.queue.push_again(id);
        }
        let refusal = entry.refusal(id);
        Failure::new(ErrorCode::TemplateDamaged, refusal.message)
    }

    /// Builds a template, and stores the outcome. Blocks for some seconds.
    fn build(self: &Arc<Self>, id: TemplateId) {
        let Some(recipe) = self.table().templates.get(&id).map(|entry| entry.recipe) else { return };
        let outcome = self.run_build(id, recipe);
        let mut table = self.table();
        table.builder = None;
        // It was removed meanwhile.
        let Some(entry) = table.templates.get_mut(&id) else { return };
        match outcome {
            Ok(ready) => {
                tracing::info!(dir = %ready.dir.display(), "the template {id} is built");
                entry.phase = Phase::Ready(ready);
            }
            Err(error) => {
                let reason = output::one_line(&error);
                tracing::error!(reason, "the template {id} could not be built: {reason}");
                let message = format!("the build failed: {reason}");
                entry.phase = Phase::Failed(Failure::new(ErrorCode::TemplateNotReady, message));
            }
        }
    }

    fn run_build(self: &Arc<Self>, id: TemplateId, recipe: Recipe) -> anyhow::Result<Ready> {
        let parent = self.parent_dir(recipe.parent).map_err(|failure| anyhow::anyhow!(failure.message))?;
        let bakery = recipe.bakery(&self.bakery, &self.shelf, id, parent);
        let dir = bake_process::run(
            &bakery,
            |process| self.table().builder = Some((id, process)),
            |step| self.report(id, step),
        )?;
        load_template(&dir)?;
        self.remove_others(id, &dir);
        Ready::of(dir)
    }

    /// Shows a step of the build. A damaged or outdated template keeps its reason.
    fn report(&self, id: TemplateId, step: &str) {
        if let Some(Entry { phase: Phase::Building { step: current }, .. }) =
            self.table().templates.get_mut(&id)
        {
            step.clone_into(current);
        }
    }

    /// Removes what was built from other inputs. VMs hold the files that they need open.
    fn remove_others(&self, id: TemplateId, current: &Path) {
        let Ok(entries) = fs::read_dir(self.folder(id)) else { return };
        let dirs =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && path != current);
        for dir in dirs {
            if let Err(error) = skep_template::shelf::remove(&dir) {
                tracing::warn!(%error, "{} could not be removed: {error}", dir.display());
            }
        }
    }
}

impl Ready {
    fn of(dir: PathBuf) -> anyhow::Result<Self> {
        let key = skep_template::read_manifest(&dir)?.key;
        let footprint = Footprint::of(&dir)?;
        Ok(Self { dir, key, footprint, loaded: None, idle: IdleTime::default() })
    }
}
