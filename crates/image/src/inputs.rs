//! All that goes into a template. A change of any of them makes another key, and so a bake.

use std::{collections::BTreeMap, path::Path};

use sha2::{Digest, Sha256};
use skep_api::swarm::EngineReport;
use skep_engine::template::hex;

use crate::{
    CACHE, Error, kernel,
    layer::LAYER_MB,
    root::{PACKAGES, PACKAGES_RECIPE},
};

/// Changes whenever the bake itself does: devices, command line, what is warmed.
const BAKE_RECIPE: &str = "1";
/// Memory of a guest of the base template, in MiB.
pub(crate) const MEMORY_MB: u64 = 128;
/// Virtual processors of a guest of the base template.
pub(crate) const VCPUS: u32 = 1;
/// 64 bits of the hash: enough to tell bakes apart, short enough to read.
const KEY_DIGITS: usize = 16;

/// All that goes into the base template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    pub(crate) named: BTreeMap<String, String>,
    pub(crate) kernel: String,
}

impl Inputs {
    /// Looks at engine, kernel and agent as they are now.
    ///
    /// # Errors
    /// The agent was not built; no kernel is known.
    pub fn gather(image_dir: &Path, engine: &EngineReport, agent: &[u8]) -> Result<Self, Error> {
        let kernel = kernel::version(&image_dir.join(CACHE))?;
        let named = [
            ("engine", engine.name.clone()),
            ("acceleration", engine.accel.clone()),
            ("kernel", kernel.clone()),
            ("agent", hex(&Sha256::digest(agent))),
            ("packages", format!("{PACKAGES_RECIPE} {}", PACKAGES.join(" "))),
            ("bake", BAKE_RECIPE.to_owned()),
            ("memory_mb", MEMORY_MB.to_string()),
            ("vcpus", VCPUS.to_string()),
            ("layer_mb", LAYER_MB.to_string()),
        ];
        Ok(Self { named: named.map(|(name, value)| (name.to_owned(), value)).into(), kernel })
    }

    /// The hash of them all.
    pub fn key(&self) -> String {
        let mut hasher = Sha256::new();
        for (name, value) in &self.named {
            hasher.update(format!("{name}={}:{value}\n", value.len()));
        }
        hex(&hasher.finalize())[..KEY_DIGITS].to_owned()
    }
}
