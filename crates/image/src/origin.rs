//! What a template begins with, and the folder that it goes to.

use std::path::PathBuf;

use skep_api::TemplateId;

/// What a template begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Packages of the distribution: the template `base`, in the image directory.
    Packages,
    /// The disk of another template; its guests have another size.
    Parent {
        /// The id of the new template, which is the name of its folder.
        id: TemplateId,
        /// The folder in which the new template gets its own.
        shelf: PathBuf,
        /// The folder of the parent with its files.
        parent: PathBuf,
        /// The folder of the template whose kernel and guest agent the new one has. `None`: those of the parent.
        system: Option<PathBuf>,
    },
}
