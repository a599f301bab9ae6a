//! The base template for the keeper. It is baked for the current machine at start, and again if it is found damaged
//! later.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use skep_api::{ErrorCode, Failure, swarm::BASE_TEMPLATE};
use skep_image::{Bakery, GuestSize, load_template};
use skep_keeper::{OpenTemplate, Templates};
use skep_template::{Error, Template, TemplateFile};

use crate::{bake_process, output};

/// Delay before the first retry of a failed bake; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

pub(crate) struct BaseTemplate(Arc<Inner>);

struct Inner {
    image_dir: PathBuf,
    size: GuestSize,
    shell_ahead: bool,
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
    pub(crate) fn load(bakery: &Bakery) -> anyhow::Result<Arc<Self>> {
        let current = Current { template: Arc::new(bakery.load()?), edition: 0, baking: false };
        let (image_dir, size, shell_ahead) = (bakery.image_dir.clone(), bakery.size, bakery.shell_ahead);
        Ok(Arc::new(Self(Arc::new(Inner { image_dir, size, shell_ahead, current: Mutex::new(current) }))))
    }
}

impl Templates for BaseTemplate {
    fn open(&self, name: &str) -> Result<OpenTemplate, Failure> {
        if name != BASE_TEMPLATE {
            return Err(Failure::unknown_template(name));
        }
        let (template, edition) = self.0.current();
        let open = |part| template.open(part).map_err(template_failure);
        Ok(OpenTemplate {
            key: template.manifest.key.clone(),
            edition,
            vcpus: template.manifest.vcpus,
            memory_mb: template.manifest.memory_mb,
            ram: template.ram().map_err(template_failure)?,
            kernel: open(TemplateFile::Kernel)?,
            initrd: open(TemplateFile::Initrd)?,
            root: open(TemplateFile::Root)?,
            state: open(TemplateFile::State)?,
            layer: open(TemplateFile::Layer)?,
        })
    }

    fn check(&self, name: &str, edition: u64) -> Result<(), Failure> {
        if name != BASE_TEMPLATE {
            return Err(Failure::unknown_template(name));
        }
        let (template, current) = self.0.current();
        if edition != current {
            let message = format!("the template `{name}` was damaged and has been baked again; try again");
            return Err(Failure::new(ErrorCode::TemplateDamaged, message));
        }
        template.check().map_err(|error| {
            Inner::start_rebake(&self.0, edition, &error);
            template_failure(error)
        })
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
            let baked = bake_process::run(&self.image_dir, self.size, self.shell_ahead);
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
        error => format!("the template `{BASE_TEMPLATE}` cannot be used: {error}"),
    };
    Failure::new(code, message)
}
