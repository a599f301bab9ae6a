//! Sealed memory files: what of a template does not depend on the disk after it was loaded.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use rustix::fs::Mode;

use crate::{
    Error, Manifest, TemplateFile,
    checksum::{ChecksumError, checksum},
    damage::{FileError, open_file, template_error},
    verified_file::FileKey,
};

const RAM_NAME: &str = "skep-ram";
const DELTA_NAME: &str = "skep-delta";
/// Any uid may open guest memory by `/proc/self/fd`. QEMU 7.2 opens it read-write even to map it private; the seals
/// protect it.
const RAM_MODE: Mode = Mode::from_raw_mode(0o777);

/// Creates a memory file for guest memory.
///
/// # Errors
/// No memory or no descriptor is available.
pub fn create_ram(memory_mb: u64) -> Result<OwnedFd, Error> {
    let file = memory_file(RAM_NAME, memory_mb << 20, RAM_MODE).map_err(Error::io("memory file"))?;
    Ok(file.into())
}

fn memory_file(name: &str, bytes: u64, mode: Mode) -> io::Result<File> {
    let file = skep_sealed_memory::create(name, mode)?;
    file.set_len(bytes)?;
    Ok(file)
}

/// Guest memories by their files, while a template holds them: the snapshots of a template have links to its file. If the
/// inode number of a removed file is used again, the checksum in the key still guarantees the content.
static SHARED_RAM: Mutex<BTreeMap<FileKey, Weak<File>>> = Mutex::new(BTreeMap::new());

/// Like [`seal_in_memory`], but returns the memory file of another template if that was loaded from the same file.
pub(crate) fn seal_ram_in_memory(dir: &Path, manifest: &Manifest) -> Result<Arc<File>, Error> {
    let wanted = manifest.checksum(dir, TemplateFile::Ram)?;
    let unusable = |error| template_error(dir, TemplateFile::Ram, error);
    let source = open_file(&dir.join(TemplateFile::Ram.file_name())).map_err(unusable)?;
    let key = FileKey::of(&source, wanted).map_err(|error| unusable(FileError::Io(error)))?;
    if let Some(file) = shared_ram(&key) {
        return Ok(file);
    }
    // Without the lock, so that templates are loaded at the same time.
    let sealed = Arc::new(seal_in_memory(dir, manifest, TemplateFile::Ram)?);
    let mut shared = SHARED_RAM.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|_, file| file.strong_count() > 0);
    shared.insert(key, Arc::downgrade(&sealed));
    Ok(sealed)
}

/// The memory file of another template that was loaded from this file.
fn shared_ram(key: &FileKey) -> Option<Arc<File>> {
    SHARED_RAM.lock().unwrap_or_else(PoisonError::into_inner).get(key).and_then(Weak::upgrade)
}

/// How much memory a file of a template takes when it is loaded, in bytes: at most what its data takes on disk, and nothing for a
/// guest memory that another template holds.
pub(crate) fn bytes_to_seal(dir: &Path, manifest: &Manifest, part: TemplateFile) -> Result<u64, Error> {
    let wanted = manifest.checksum(dir, part)?;
    let unusable = |error| template_error(dir, part, error);
    let source = open_file(&dir.join(part.file_name())).map_err(unusable)?;
    let key = FileKey::of(&source, wanted).map_err(|error| unusable(FileError::Io(error)))?;
    if part == TemplateFile::Ram && shared_ram(&key).is_some() {
        return Ok(0);
    }
    let found = source.metadata().map_err(|error| unusable(FileError::Io(error)))?;
    // stat(2) counts blocks of 512 bytes.
    Ok(found.blocks() * 512)
}

/// Copies the data of a file into a sealed memory file and verifies the checksum of the copy. Holes and pages of zeros take
/// no memory, so that a disk layer of any size takes little.
pub(crate) fn seal_in_memory(dir: &Path, manifest: &Manifest, part: TemplateFile) -> Result<File, Error> {
    let wanted = manifest.checksum(dir, part)?;
    let damaged = |reason: String| template_error(dir, part, FileError::Damaged(reason));
    let unusable = |error| template_error(dir, part, error);
    let source = open_file(&dir.join(part.file_name())).map_err(unusable)?;
    let length = source.metadata().map_err(|error| unusable(FileError::Io(error)))?.len();
    let memory = match part {
        TemplateFile::Ram => memory_file(RAM_NAME, length, RAM_MODE),
        TemplateFile::Delta => memory_file(DELTA_NAME, length, Mode::from_raw_mode(0o444)),
        _ => memory_file(part.file_name(), length, Mode::from_raw_mode(0o444)),
    };
    let memory = memory.map_err(Error::io("memory file"))?;
    let found = match checksum(&source, |at, bytes| memory.write_all_at(bytes, at)) {
        Ok(found) => found,
        Err(ChecksumError::Read(error)) => return Err(damaged(error.to_string())),
        Err(ChecksumError::Copy(error)) => return Err(Error::io("memory file")(error)),
    };
    if found != wanted {
        return Err(damaged(format!("SHA-256 is {found}, should be {wanted}")));
    }
    skep_sealed_memory::seal(&memory).map_err(Error::io("seal of a memory file"))?;
    Ok(memory)
}
