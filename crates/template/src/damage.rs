//! Damage of a template's files, as opposed to failures of the machine.

use std::{fs::File, io, path::Path};

use crate::{Error, TemplateFile};

pub(crate) enum FileError {
    /// The file is missing or does not match its checksum.
    Damaged(String),
    /// The file cannot be opened for another reason.
    Io(io::Error),
}

/// Opens a file of a template, which must exist.
pub(crate) fn open_file(path: &Path) -> Result<File, FileError> {
    File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FileError::Damaged(error.to_string()),
        _ => FileError::Io(error),
    })
}

/// The error of a template with this file. Failures of the machine, such as a lack of descriptors or memory, are no damage.
pub(crate) fn template_error(dir: &Path, part: TemplateFile, unfit: FileError) -> Error {
    match unfit {
        FileError::Damaged(reason) => {
            let reason = format!("{}: {reason}", part.file_name());
            Error::Damaged { dir: dir.to_owned(), reason }
        }
        FileError::Io(error) => Error::io(dir.join(part.file_name()).display())(error),
    }
}
