//! The base template for the keeper. It is baked for the current machine at start, and again if it is found damaged
//! later. While VMs of an earlier keeper run, nothing that is wrong with it keeps this keeper from taking them over: what
//! cannot be loaded or baked now is loaded by the first boot, or baked later.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use skep_api::{ErrorCode, Failure, TemplateId, swarm::BASE_TEMPLATE};
use skep_image::{TemplateBuilder, load_template};
use skep_keeper::{AdmitLoad, OpenTemplate};
use skep_keeper_protocol::{TemplateState, TemplateStatus};
use skep_template::{Error, Template, shelf::Footprint};

use super::{build_error::BuildError, open};
use crate::{bake_process, output};

/// Delay before the first retry of a failed bake; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

pub(super) struct BaseTemplate(Arc<Inner>);

struct Inner {
    template_builder: TemplateBuilder,
    current: Mutex<Current>,
    /// Held while it is being loaded.
    loading: Mutex<()>,
}

struct Current {
    files: Files,
    edition: u64,
    /// Whether the next edition is being baked.
    baking: bool,
}

/// The files of the current edition.
#[derive(Clone)]
enum Files {
    Loaded(Arc<Template>),
    /// Verified, and loaded by the first boot.
    OnDisk {
        dir: PathBuf,
        key: String,
    },
    /// Their bake failed, and is tried again.
    Missing(BuildError),
}

impl Files {
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Loaded(template) => Some(template.dir()),
            Self::OnDisk { dir, .. } => Some(dir),
            Self::Missing(_) => None,
        }
    }

    fn key(&self) -> &str {
        match self {
            Self::Loaded(template) => &template.manifest.key,
            Self::OnDisk { key, .. } => key,
            Self::Missing(_) => "",
        }
    }
}

impl BaseTemplate {
    /// Loads the template. Bakes it first, which blocks for a minute or more, if it is missing, damaged or was baked
    /// for another configuration.
    pub(super) fn load(template_builder: &TemplateBuilder) -> anyhow::Result<Arc<Self>> {
        Ok(Self::new(template_builder, Files::Loaded(Arc::new(template_builder.load()?))))
    }

    /// Like [`Self::load`], while VMs of an earlier keeper run, which do not need the template. It is not loaded yet, because
    /// the machine may have no memory for it: the first boot loads it if that is admitted. If it must be baked and cannot be,
    /// for example because the disk is full, the bake is tried again later.
    ///
    /// # Errors
    /// A signal stopped the bake.
    pub(super) fn find(template_builder: &TemplateBuilder) -> anyhow::Result<Arc<Self>> {
        if let Some(files) = on_disk(template_builder) {
            return Ok(Self::new(template_builder, files));
        }
        let error = match template_builder.load() {
            Ok(template) => return Ok(Self::new(template_builder, Files::Loaded(Arc::new(template)))),
            // It asked this process to end.
            Err(error @ skep_image::Error::Interrupted(_)) => return Err(error.into()),
            Err(error) => anyhow::Error::from(error),
        };
        let reason = output::one_line(&error);
        tracing::warn!(
            reason,
            "VMs run on, and no VM is booted before the template `{BASE_TEMPLATE}` is baked, which failed: {reason}"
        );
        let base = Self::new(template_builder, Files::Missing(BuildError::of_bake(&error)));
        Inner::bake_missing(&base.0);
        Ok(base)
    }

    fn new(template_builder: &TemplateBuilder, files: Files) -> Arc<Self> {
        let current = Mutex::new(Current { files, edition: 0, baking: false });
        Arc::new(Self(Arc::new(Inner {
            template_builder: template_builder.clone(),
            current,
            loading: Mutex::default(),
        })))
    }
}

impl BaseTemplate {
    pub(super) fn open(&self, admit: &AdmitLoad<'_>) -> Result<OpenTemplate, Failure> {
        let (template, edition) = self.loaded(admit)?;
        open(&template, edition).map_err(template_failure)
    }

    /// Loads the template, unless it is loaded. Blocks for a fraction of a second.
    fn loaded(&self, admit: &AdmitLoad<'_>) -> Result<(Arc<Template>, u64), Failure> {
        if let (Files::Loaded(template), edition) = self.0.current() {
            return Ok((template, edition));
        }
        // One load at a time: its memory is admitted and taken once, however many VMs begin with it.
        let _loading = self.0.loading.lock().unwrap_or_else(PoisonError::into_inner);
        // It is read before the edition: a bake that ends in between leaves the template loaded, and these files are not used.
        let dir = self.dir()?;
        match self.0.current() {
            (Files::Loaded(template), edition) => Ok((template, edition)),
            (_, edition) => Inner::load(&self.0, &dir, edition, admit),
        }
    }

    /// What its memory files take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match &self.0.lock().files {
            Files::Loaded(template) => template.memory_bytes(),
            Files::OnDisk { .. } | Files::Missing(_) => 0,
        }
    }

    pub(super) fn check(&self, edition: u64) -> Result<(), Failure> {
        let (files, current) = self.0.current();
        if edition != current {
            let message =
                format!("the template `{BASE_TEMPLATE}` was damaged and has been baked again; try again");
            return Err(Failure::new(ErrorCode::TemplateDamaged, message));
        }
        // No VM was launched from files that were never loaded.
        let Files::Loaded(template) = files else { return Ok(()) };
        template.check().map_err(|error| {
            Inner::start_rebake(&self.0, edition, &error);
            template_failure(error)
        })
    }

    /// The folder with its files.
    ///
    /// # Errors
    /// It is being baked.
    pub(super) fn dir(&self) -> Result<PathBuf, Failure> {
        Inner::bake_missing(&self.0);
        let current = self.0.lock();
        match &current.files {
            Files::Missing(reason) => Err(not_baked(*reason)),
            _ if current.baking => {
                let message =
                    format!("the template `{BASE_TEMPLATE}` is being baked again; try again in a minute");
                Err(Failure::new(ErrorCode::TemplateDamaged, message))
            }
            Files::Loaded(template) => Ok(template.dir().to_owned()),
            Files::OnDisk { dir, .. } => Ok(dir.clone()),
        }
    }

    /// Verifies its files on disk, with which other templates begin, and bakes it again if they are damaged. Returns
    /// whether they are, or are missing. Blocks for a fraction of a second.
    pub(super) fn is_damaged_on_disk(&self) -> bool {
        let (files, edition) = self.0.current();
        let Some(dir) = files.dir() else { return true };
        match skep_template::verify(dir) {
            Err(error @ (Error::Damaged { .. } | Error::Missing(_))) => {
                Inner::start_rebake(&self.0, edition, &error);
                true
            }
            _ => false,
        }
    }

    pub(super) fn status(&self) -> TemplateStatus {
        let current = self.0.lock();
        // Without its files, for example after their removal, VMs still boot from what is held open.
        let footprint = current.files.dir().and_then(|dir| Footprint::of(dir, &[]).ok());
        let Footprint { all: size_bytes, own: own_bytes } = footprint.unwrap_or_default();
        let state = match &current.files {
            Files::Missing(reason) => {
                TemplateState::Outdated { reason: format!("its bake failed and is tried again: {reason}") }
            }
            _ if current.baking => {
                TemplateState::Damaged { reason: "its files changed; it is being baked again".to_owned() }
            }
            files => TemplateState::Ready { key: files.key().to_owned() },
        };
        TemplateStatus {
            template: TemplateId::BASE,
            parent: None,
            size: self.0.template_builder.size,
            state,
            size_bytes,
            own_bytes,
        }
    }
}

impl Inner {
    fn current(&self) -> (Files, u64) {
        let current = self.lock();
        (current.files.clone(), current.edition)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the files in the folder of this edition. Damaged ones are baked again.
    fn load(
        this: &Arc<Self>,
        dir: &Path,
        edition: u64,
        admit: &AdmitLoad<'_>,
    ) -> Result<(Arc<Template>, u64), Failure> {
        let unusable = |error: Error| {
            let error = match error {
                Error::Missing(dir) => Error::Damaged { dir, reason: "its files are missing".to_owned() },
                error => error,
            };
            if matches!(error, Error::Damaged { .. } | Error::Outdated { .. }) {
                Self::start_rebake(this, edition, &error);
            }
            template_failure(error)
        };
        // Until the files are in memory: only then does the machine count them as taken.
        let admission = admit(skep_template::bytes_to_load(dir).map_err(unusable)?)?;
        let template = Arc::new(Template::load(dir).map_err(unusable)?);
        drop(admission);
        let mut current = this.lock();
        // Another edition may have been baked meanwhile.
        if current.edition == edition {
            current.files = Files::Loaded(Arc::clone(&template));
        }
        Ok((template, edition))
    }

    /// Starts to bake files that are missing, unless they are being baked. If the thread cannot be started, the next use of
    /// the template tries again.
    fn bake_missing(this: &Arc<Self>) {
        let mut current = this.lock();
        if matches!(current.files, Files::Missing(_)) && !current.baking {
            current.baking = Self::start_bake(this);
        }
    }

    /// Starts to bake the next edition in a thread, unless one is being baked. If the thread cannot be started, the
    /// next check tries again.
    fn start_rebake(this: &Arc<Self>, edition: u64, damage: &Error) {
        let mut current = this.lock();
        if current.edition != edition || current.baking {
            return;
        }
        tracing::error!(error = %damage, "{damage}; that is done now, and no VM is booted before");
        current.baking = Self::start_bake(this);
    }

    /// Starts the thread that bakes. Returns whether it could be started.
    fn start_bake(this: &Arc<Self>) -> bool {
        let inner = Arc::clone(this);
        let spawned = thread::Builder::new().name("bake".to_owned()).spawn(move || inner.rebake());
        spawned
            .inspect_err(|error| tracing::error!(%error, "the bake thread could not be started: {error}"))
            .is_ok()
    }

    fn rebake(&self) {
        let mut pause = MIN_RETRY_DELAY;
        loop {
            let baked = bake_process::run(&self.template_builder, |_| {}, |_| {});
            match baked.and_then(|dir| Ok(load_template(&dir)?)) {
                Ok(template) => return self.install(template),
                Err(error) => {
                    let reason = output::one_line(&error);
                    tracing::error!(
                        reason,
                        "the template could not be baked again: {reason}; next attempt in {pause:?}"
                    );
                }
            }
            thread::sleep(pause);
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
    }

    fn install(&self, template: Template) {
        let dir = template.dir().display().to_string();
        let mut current = self.lock();
        let edition = current.edition + 1;
        *current = Current { files: Files::Loaded(Arc::new(template)), edition, baking: false };
        drop(current);
        tracing::info!(dir, "the template at {dir} is baked: VMs are booted again");
    }
}

/// The files of the current inputs, verified but not loaded. `None` if they must be baked.
fn on_disk(template_builder: &TemplateBuilder) -> Option<Files> {
    let dir = template_builder.locate().ok()??;
    match skep_template::verify(&dir) {
        Err(Error::Damaged { .. } | Error::Outdated { .. } | Error::Missing(_)) => return None,
        // What this machine lacks now, such as descriptors, the load finds out.
        Err(Error::Io { .. }) | Ok(()) => {}
    }
    let key = skep_template::read_manifest(&dir).ok()?.key;
    Some(Files::OnDisk { dir, key })
}

/// The refusal of what needs the template before its bake has succeeded.
fn not_baked(reason: BuildError) -> Failure {
    let message = format!(
        "the bake of the template `{BASE_TEMPLATE}` failed and is tried again: {reason}; try again in a minute"
    );
    Failure::new(ErrorCode::TemplateNotReady, message)
}

/// The error for a caller, without paths. If the template is not damaged, this machine lacks a resource, such as
/// descriptors.
fn template_failure(error: Error) -> Failure {
    let code = error.code();
    let message = match error {
        Error::Damaged { reason, .. } => format!(
            "the template `{BASE_TEMPLATE}` is damaged ({reason}) and is being baked again; try again in a minute"
        ),
        error => {
            tracing::error!(%error, "the template `{BASE_TEMPLATE}` cannot be used: {error}");
            format!("the template `{BASE_TEMPLATE}` cannot be used now; the log of the server has the reason")
        }
    };
    Failure::new(code, message)
}
