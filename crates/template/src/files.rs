//! The files of a template, and their names in its folder.

use serde::{Deserialize, Serialize};

/// The files of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateFile {
    Kernel,
    /// The initial ramdisk, with guest agent and kernel modules.
    Initrd,
    /// The shared root file system.
    Root,
    /// The saved guest memory.
    Ram,
    /// The saved device state.
    State,
    /// The saved private disk layer.
    Layer,
}

impl TemplateFile {
    pub const ALL: [TemplateFile; 6] = [
        TemplateFile::Kernel,
        TemplateFile::Initrd,
        TemplateFile::Root,
        TemplateFile::Ram,
        TemplateFile::State,
        TemplateFile::Layer,
    ];

    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Initrd => "initrd",
            Self::Root => "root.erofs",
            Self::Ram => "ram",
            Self::State => "state",
            Self::Layer => "layer.ext4",
        }
    }
}
