//! Where the keeper gets templates from: the base template, baked for the machine as it is now.

use std::sync::Arc;

use skep_api::{Failure, swarm::BASE_TEMPLATE};
use skep_engine::template::{Part, Template};
use skep_image::Bakery;
use skep_keeper::{OpenTemplate, Templates};

/// The base template, loaded.
pub(crate) struct BaseTemplate(Template);

impl BaseTemplate {
    /// Bakes it where it is missing, damaged or was baked for something else, and loads it. Blocks, for a minute or more
    /// where it bakes.
    pub(crate) fn load(bakery: &Bakery) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self(bakery.load()?)))
    }
}

impl Templates for BaseTemplate {
    fn open(&self, name: &str) -> Result<OpenTemplate, Failure> {
        if name != BASE_TEMPLATE {
            return Err(Failure::unknown_template(name));
        }
        let Self(template) = self;
        let open = |part| template.open(part).map_err(unusable);
        Ok(OpenTemplate {
            key: template.manifest.key.clone(),
            vcpus: template.manifest.vcpus,
            memory_mb: template.manifest.memory_mb,
            ram: template.ram().map_err(unusable)?,
            kernel: open(Part::Kernel)?,
            initrd: open(Part::Initrd)?,
            root: open(Part::Root)?,
            state: open(Part::State)?,
            layer: open(Part::Layer)?,
        })
    }
}

/// Its files are held open, so it is this machine that lacks something, such as descriptors.
fn unusable(error: skep_engine::Error) -> Failure {
    let message = format!("the template `{BASE_TEMPLATE}` cannot be used: {error}");
    Failure::new(error.code(), message)
}
