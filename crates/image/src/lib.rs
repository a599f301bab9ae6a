//! What a template is made of, and how it is baked: root file system, kernel, initial ramdisk, a boot brought to rest.

mod apt;
mod bake;
mod boot;
mod command;
mod error;
mod initrd;
mod inputs;
mod interrupt;
mod kernel;
mod layer;
mod place;
mod root;
mod shelf;

pub use bake::{Bakery, Progress};
pub use error::Error;
pub use inputs::Inputs;
pub use shelf::{CONTENTS, OtherTemplate, clean};

/// The guest agent's binary, where it was built before this crate.
pub const AGENT: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/agent.rs"));
/// Where an image directory keeps packages and kernels. No template's name begins with a dot.
pub(crate) const CACHE: &str = ".cache";
