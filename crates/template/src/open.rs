//! A template that was loaded from its folder and is held open.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, ScopedJoinHandle},
};

use crate::{
    Error, FORMAT, Manifest, TemplateFile,
    damage::{FileError, template_error},
    memory::{bytes_to_seal, seal_in_memory, seal_ram_in_memory},
    read_manifest,
    verified_file::VerifiedFile,
};

/// A template that was verified and is held open: its root file system as an open file, all other files as sealed
/// memory files. It stays usable if its folder is moved or removed.
#[derive(Debug)]
pub struct Template {
    pub manifest: Manifest,
    dir: PathBuf,
    /// All files but the root file system.
    sealed: BTreeMap<TemplateFile, Arc<File>>,
    /// On disk, because sealed memory cannot be reclaimed and this file is large. Guests share it in the page cache.
    root: Arc<VerifiedFile>,
}

impl Template {
    /// Reads the data of every file, verifies its checksum and loads all but the root file system into sealed memory
    /// files. Blocks for a fraction of a second.
    ///
    /// # Errors
    /// The template is missing, outdated or damaged; the message names the file.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let manifest = read_current_manifest(dir)?;
        let of_manifest = &manifest;
        // Each in a thread of its own: root file system and memory are large, and of a snapshot delta and layer too.
        let (sealed, root) = thread::scope(|scope| {
            let root = scope.spawn(|| open_root(dir, of_manifest));
            let sealed = manifest.files().filter(|part| *part != TemplateFile::Root);
            let sealed: Vec<_> =
                sealed.map(|part| (part, scope.spawn(move || seal(dir, of_manifest, part)))).collect();
            let sealed = sealed.into_iter().map(|(part, thread)| Ok((part, join(thread)?)));
            (sealed.collect::<Result<_, Error>>(), join(root))
        });
        Ok(Self { sealed: sealed?, root: root?, dir: dir.to_owned(), manifest })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks that the template is unchanged since it was loaded. Cheap, unless metadata of the root file system's file
    /// changed in a way that may be harmless: then the file is read again, which blocks for a fraction of a second. A damaged
    /// template stays damaged.
    ///
    /// # Errors
    /// [`Error::Damaged`], with what changed.
    pub fn check(&self) -> Result<(), Error> {
        self.root
            .check()
            .map_err(|reason| template_error(&self.dir, TemplateFile::Root, FileError::Damaged(reason)))
    }

    /// Opens one of its files for reading, with its own file position.
    ///
    /// # Errors
    /// The limit of open descriptors is reached.
    pub fn open(&self, part: TemplateFile) -> Result<OwnedFd, Error> {
        // By its descriptor: the path may refer to another file by now.
        let file = self.sealed.get(&part).map_or(self.root.file(), Arc::as_ref);
        let opened = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(opened.map_err(Error::io(self.dir.join(part.file_name()).display()))?.into())
    }

    /// The sealed memory file of the guest memory.
    ///
    /// # Errors
    /// The limit of open descriptors is reached.
    pub fn ram(&self) -> Result<OwnedFd, Error> {
        let ram = self.sealed.get(&TemplateFile::Ram).ok_or(io::ErrorKind::NotFound.into());
        let ram = ram.and_then(|ram| ram.try_clone()).map_err(Error::io("memory file"))?;
        Ok(ram.into())
    }

    /// The sealed memory file with the pages of a snapshot. `None` for a baked template.
    pub fn delta(&self) -> Option<&File> {
        self.sealed.get(&TemplateFile::Delta).map(Arc::as_ref)
    }

    /// What its memory files take, in bytes. A file that templates share counts in equal parts for each of them.
    pub fn memory_bytes(&self) -> u64 {
        // stat(2) counts blocks of 512 bytes.
        let bytes = |file: &File| file.metadata().map_or(0, |found| found.blocks() * 512);
        self.sealed.values().map(|file| bytes(file) / Arc::strong_count(file) as u64).sum()
    }
}

fn open_root(dir: &Path, manifest: &Manifest) -> Result<Arc<VerifiedFile>, Error> {
    let wanted = manifest.checksum(dir, TemplateFile::Root)?;
    let opened = VerifiedFile::open_shared(&dir.join(TemplateFile::Root.file_name()), wanted);
    opened.map_err(|unfit| template_error(dir, TemplateFile::Root, unfit))
}

fn seal(dir: &Path, manifest: &Manifest, part: TemplateFile) -> Result<Arc<File>, Error> {
    match part {
        TemplateFile::Ram => seal_ram_in_memory(dir, manifest),
        part => Ok(Arc::new(seal_in_memory(dir, manifest, part)?)),
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// How much memory [`Template::load`] takes for the template in this folder, in bytes, by the space that its files take on disk.
///
/// # Errors
/// The template is missing or outdated, or a file is missing.
pub fn bytes_to_load(dir: &Path) -> Result<u64, Error> {
    let manifest = read_current_manifest(dir)?;
    let sealed = manifest.files().filter(|part| *part != TemplateFile::Root);
    sealed.map(|part| bytes_to_seal(dir, &manifest, part)).sum()
}

/// Verifies the checksum of every file of a template. Blocks for a fraction of a second.
///
/// # Errors
/// Those of [`Template::load`].
pub fn verify(dir: &Path) -> Result<(), Error> {
    let manifest = read_current_manifest(dir)?;
    manifest.files().try_for_each(|part| open_verified(dir, &manifest, part).map(drop))
}

/// Verifies a copy of, or another link to, a file of the template in `dir` by that template's manifest. Blocks for a fraction
/// of a second.
///
/// # Errors
/// Those of [`Template::load`], about the template in `dir`.
pub fn verify_copy(dir: &Path, part: TemplateFile, copy: &Path) -> Result<(), Error> {
    let manifest = read_current_manifest(dir)?;
    let opened = VerifiedFile::open(copy, manifest.checksum(dir, part)?);
    opened.map(drop).map_err(|unfit| template_error(dir, part, unfit))
}

fn read_current_manifest(dir: &Path) -> Result<Manifest, Error> {
    let manifest = read_manifest(dir)?;
    if manifest.format != FORMAT {
        let reason = format!("its manifest has format {}, this skep reads {FORMAT}", manifest.format);
        return Err(Error::Outdated { dir: dir.to_owned(), reason });
    }
    Ok(manifest)
}

fn open_verified(dir: &Path, manifest: &Manifest, part: TemplateFile) -> Result<VerifiedFile, Error> {
    let wanted = manifest.checksum(dir, part)?;
    let opened = VerifiedFile::open(&dir.join(part.file_name()), wanted);
    opened.map_err(|unfit| template_error(dir, part, unfit))
}

#[cfg(test)]
mod tests;
