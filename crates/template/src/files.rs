//! The files of a template, and their names in its folder.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::verified_file::while_links_change;

/// Makes a file of a template that of another one too. Both have the same content on disk, if they are on one file system.
///
/// # Errors
/// The file is missing, or the folder cannot be written.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match while_links_change(from, || fs::hard_link(from, to)) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => fs::copy(from, to).map(drop),
        other => other,
    }
}

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
    /// What a snapshot of a running VM changed in the guest memory, at the same offsets. Only in snapshots.
    Delta,
    /// Which pages those are. Only in snapshots.
    Pages,
}

impl TemplateFile {
    /// The files that every template has.
    pub const ALL: [TemplateFile; 6] = [
        TemplateFile::Kernel,
        TemplateFile::Initrd,
        TemplateFile::Root,
        TemplateFile::Ram,
        TemplateFile::State,
        TemplateFile::Layer,
    ];

    /// The files that only snapshots have.
    pub const OF_SNAPSHOTS: [TemplateFile; 2] = [TemplateFile::Delta, TemplateFile::Pages];

    /// The files that a built template has in common with its parent.
    pub const OF_PARENT: [TemplateFile; 3] = [TemplateFile::Root, TemplateFile::Kernel, TemplateFile::Initrd];

    /// The files that a snapshot has in common with the template that its VM was booted from.
    pub const OF_ORIGIN: [TemplateFile; 4] =
        [TemplateFile::Kernel, TemplateFile::Initrd, TemplateFile::Root, TemplateFile::Ram];

    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Initrd => "initrd",
            Self::Root => "root.erofs",
            Self::Ram => "ram",
            Self::State => "state",
            Self::Layer => "layer.ext4",
            Self::Delta => "delta",
            Self::Pages => "pages",
        }
    }
}
