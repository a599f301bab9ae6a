//! Templates on disk: their manifest and files, how they are verified and held open, and the directory that contains
//! them.

mod checksum;
mod damage;
mod error;
mod files;
mod manifest;
mod memory;
mod open;
pub mod shelf;
mod verified_file;

pub use checksum::{checksum_of, copy_sparse, hex};
pub use error::Error;
pub use files::{TemplateFile, link_or_copy};
pub use manifest::{FORMAT, MANIFEST, Manifest, read_manifest};
pub use memory::create_ram;
pub use open::{Template, bytes_to_load, verify, verify_copy};
