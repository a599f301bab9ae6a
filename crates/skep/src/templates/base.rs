//! The base template for the keeper. It is baked for the current machine at start, and again if it is found damaged
//! later.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use skep_api::{ErrorCode, Failure, TemplateId, swarm::BASE_TEMPLATE};
use skep_image::{TemplateBuilder, load_template};
use skep_keeper::OpenTemplate;
use skep_keeper_protocol::{TemplateState, TemplateStatus};
use skep_template::{Error, Template, shelf::Footprint};

use super::open;
use crate::{bake_process, output};

/// Delay before the first retry of a failed bake; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

pub(super) struct BaseTemplate(Arc<Inner>);

struct Inner {
    template_builder: TemplateBuilder,
    current: Mutex<Current>,
}

struct Current {
    template: Arc<Template>,
    edition: u64,
    /// Whether the next edition is being baked.
    baking: bool,
}

impl BaseTemplate {
    /// Loads the template. Bakes it first, which blocks for a minute or more, if it is missing, damaged or was baked
    /// for another configuration.
    pub(super) fn load(template_builder: &TemplateBuilder) -> anyhow::Result<Arc<Self>> {
        let current = Current { template: Arc::new(template_builder.load()?), edition: 0, baking: false };
        let template_builder = template_builder.clone();
        Ok(Arc::new(Self(Arc::new(Inner { template_builder, current: Mutex::new(current) }))))
    }
}

impl BaseTemplate {
    pub(super) fn open(&self) -> Result<OpenTemplate, Failure> {
        let (template, edition) = self.0.current();
        open(&template, edition).map_err(template_failure)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.lock().template.memory_bytes()
    }

    pub(super) fn check(&self, edition: u64) -> Result<(), Failure> {
        let (template, current) = self.0.current();
        if edition != current {
            let message =
                format!("the template `{BASE_TEMPLATE}` was damaged and has been baked again; try again");
            return Err(Failure::new(ErrorCode::TemplateDamaged, message));
        }
        template.check().map_err(|error| {
            Inner::start_rebake(&self.0, edition, &error);
            template_failure(error)
        })
    }

    /// The folder with its files.
    ///
    /// # Errors
    /// It is being baked again.
    pub(super) fn dir(&self) -> Result<PathBuf, Failure> {
        let current = self.0.lock();
        if current.baking {
            let message =
                format!("the template `{BASE_TEMPLATE}` is being baked again; try again in a minute");
            return Err(Failure::new(ErrorCode::TemplateDamaged, message));
        }
        Ok(current.template.dir().to_owned())
    }

    /// Verifies its files on disk, with which other templates begin, and bakes it again if they are damaged. Returns
    /// whether they are. Blocks for a fraction of a second.
    pub(super) fn is_damaged_on_disk(&self) -> bool {
        let (template, edition) = self.0.current();
        match skep_template::verify(template.dir()) {
            Err(error @ (Error::Damaged { .. } | Error::Missing(_))) => {
                Inner::start_rebake(&self.0, edition, &error);
                true
            }
            _ => false,
        }
    }

    pub(super) fn status(&self) -> TemplateStatus {
        let current = self.0.lock();
        let key = current.template.manifest.key.clone();
        let state = if current.baking {
            TemplateState::Damaged { reason: "its files changed; it is being baked again".to_owned() }
        } else {
            // Without its files, for example after their removal, VMs still boot from what is held open.
            let footprint = Footprint::of(current.template.dir()).unwrap_or_default();
            TemplateState::Ready { key, size_bytes: footprint.all, own_bytes: footprint.own }
        };
        TemplateStatus { template: TemplateId::BASE, parent: None, size: self.0.template_builder.size, state }
    }
}

impl Inner {
    fn current(&self) -> (Arc<Template>, u64) {
        let current = self.lock();
        (Arc::clone(&current.template), current.edition)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to bake the next edition in a thread, unless one is being baked. If the thread cannot be started, the
    /// next check tries again.
    fn start_rebake(this: &Arc<Self>, edition: u64, damage: &Error) {
        let mut current = this.lock();
        if current.edition != edition || current.baking {
            return;
        }
        tracing::error!(error = %damage, "{damage}; that is done now, and no VM is booted before");
        let baker = Arc::clone(this);
        let spawned = thread::Builder::new().name("bake".to_owned()).spawn(move || baker.rebake());
        match spawned {
            Ok(_) => current.baking = true,
            Err(error) => tracing::error!(%error, "the bake thread could not be started: {error}"),
        }
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
        *current = Current { template: Arc::new(template), edition, baking: false };
        drop(current);
        tracing::info!(dir, "the template at {dir} is repaired: VMs are booted again");
    }
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
