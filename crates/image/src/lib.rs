//! Builds ("bakes") templates: root file system, kernel, initial ramdisk, and the saved state of a booted guest. The
//! base template is made of packages, others begin with the disk of their parent.

mod apt;
mod bake;
mod boot;
mod clean;
mod command;
mod environment;
mod error;
mod initrd;
mod inputs;
mod interrupt;
mod kernel;
mod layer;
mod origin;
mod parent;
mod root;
mod state_inputs;
mod tsc;

pub use bake::{BUILD_STEPS, Progress, TemplateBuilder, load_template};
pub use clean::clean;
pub use error::Error;
pub use inputs::Inputs;
pub use origin::Origin;

/// The binary of the guest agent; `None` if it was not built before this crate.
pub const AGENT: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/agent.rs"));
