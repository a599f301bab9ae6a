//! A template on disk: a folder with its files and a manifest with their checksums.
//!
//! The folder is `<image-dir>/<name>/<key>/`. The key is a hash of all inputs, so that servers of different builds can
//! share an image directory, and an outdated template is not found.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;

mod verified_file;

use verified_file::{FileError, VerifiedFile};

pub const MANIFEST: &str = "manifest.json";
/// Large enough that the time for hashing dominates the time for reading.
const BLOCK_BYTES: usize = 1 << 20;
const PAGE_OF_ZEROS: [u8; 4096] = [0; 4096];

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The hash of its inputs.
    pub key: String,
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// The protocol of its guest agent. `None` if it was baked before agents named one.
    // Left out of the JSON then, so that the seals of older manifests stay valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// All inputs, for diagnosis only.
    pub inputs: BTreeMap<String, String>,
    /// SHA-256 of each file, in hex.
    pub sha256: BTreeMap<TemplateFile, String>,
}

/// The manifest file: the manifest with a checksum of its own, which detects damage of the manifest itself.
#[derive(Serialize, Deserialize)]
struct ManifestFile {
    #[serde(flatten)]
    manifest: Manifest,
    /// SHA-256 of the manifest as compact JSON, in hex.
    seal: String,
}

impl Manifest {
    /// The content of the manifest file.
    ///
    /// # Errors
    /// It cannot be serialized.
    pub fn to_file(&self) -> io::Result<Vec<u8>> {
        let sealed = ManifestFile { manifest: self.clone(), seal: self.seal()? };
        Ok(serde_json::to_vec_pretty(&sealed)?)
    }

    fn seal(&self) -> io::Result<String> {
        Ok(hex(&Sha256::digest(serde_json::to_vec(self)?)))
    }
}

/// The folder of a template in an image directory.
pub fn template_dir(image_dir: &Path, name: &str, key: &str) -> PathBuf {
    image_dir.join(name).join(key)
}

/// A template that was verified and is held open: its root file system as an open file, all other files as sealed
/// memory files. It stays usable if its folder is moved or removed.
#[derive(Debug)]
pub struct Template {
    pub manifest: Manifest,
    dir: PathBuf,
    /// All files but the root file system.
    sealed: BTreeMap<TemplateFile, File>,
    /// On disk, because sealed memory cannot be reclaimed and this file is large. Guests share it in the page cache.
    root: VerifiedFile,
}

impl Template {
    /// Reads every file, verifies its checksum and loads all but the root file system into sealed memory files. Blocks
    /// for some seconds.
    ///
    /// # Errors
    /// The template is missing or damaged; the message names the file.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let manifest = read_manifest(dir)?;
        let sealed = TemplateFile::ALL.into_iter().filter(|part| *part != TemplateFile::Root);
        let sealed = sealed.map(|part| Ok((part, seal_in_memory(dir, &manifest, part)?)));
        let sealed = sealed.collect::<Result<_, Error>>()?;
        let wanted = checksum(dir, &manifest, TemplateFile::Root)?;
        let root = VerifiedFile::open(&dir.join(TemplateFile::Root.file_name()), wanted);
        let root = root.map_err(|unfit| template_error(dir, TemplateFile::Root, unfit))?;
        Ok(Self { manifest, dir: dir.to_owned(), sealed, root })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks that the template is unchanged since it was loaded. Cheap, unless metadata of the root file system's file
    /// changed in a way that may be harmless: then the file is read again, which blocks for about a second. A damaged
    /// template stays damaged.
    ///
    /// # Errors
    /// [`Error::DamagedTemplate`], with what changed.
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
        let file = self.sealed.get(&part).unwrap_or(self.root.file());
        let opened = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(opened.map_err(Error::io(self.dir.join(part.file_name()).display().to_string()))?.into())
    }

    /// The sealed memory file of the guest memory.
    ///
    /// # Errors
    /// The limit of open descriptors is reached.
    pub fn ram(&self) -> Result<OwnedFd, Error> {
        let ram = self.sealed.get(&TemplateFile::Ram).ok_or(io::ErrorKind::NotFound.into());
        let ram = ram.and_then(File::try_clone).map_err(Error::io("memory file"))?;
        Ok(ram.into())
    }
}

/// Reads the manifest of a template's folder.
///
/// # Errors
/// There is none, or it is damaged.
pub fn read_manifest(dir: &Path) -> Result<Manifest, Error> {
    let text = match std::fs::read(dir.join(MANIFEST)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::NoTemplate(dir.to_owned()));
        }
        Err(error) => return Err(Error::io(dir.join(MANIFEST).display().to_string())(error)),
    };
    let damaged = |reason: String| Error::DamagedTemplate {
        dir: dir.to_owned(),
        reason: format!("{MANIFEST} cannot be read: {reason}"),
    };
    let ManifestFile { manifest, seal } =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    match manifest.seal() {
        Ok(wanted) if wanted == seal => Ok(manifest),
        Ok(_) => Err(damaged("it is not what was written".to_owned())),
        Err(error) => Err(damaged(error.to_string())),
    }
}

/// Creates a memory file for guest memory. Its mode allows a VMM with any uid to open it by `/proc/self/fd`.
///
/// # Errors
/// No memory or no descriptor is available.
pub fn create_ram(memory_mb: u64) -> Result<OwnedFd, Error> {
    // QEMU 7.2 opens it read-write even to map it private. The seals protect it.
    let mode = Mode::from_raw_mode(0o777);
    memory_file("skep-ram", memory_mb << 20, mode).map_err(Error::io("memory file"))
}

fn memory_file(name: &str, bytes: u64, mode: Mode) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    fchmod(&file, mode)?;
    Ok(file)
}

/// Seals a memory file, so that no holder of a descriptor can change it.
///
/// # Errors
/// A process has mapped it shared and writable.
pub fn seal_ram(ram: &OwnedFd) -> Result<(), Error> {
    fcntl_add_seals(ram, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(io::Error::from)
        .map_err(Error::io("seal of a memory file"))
}

/// The SHA-256 of a file, in hex.
///
/// # Errors
/// Reading failed.
pub fn hash_file(path: &Path) -> io::Result<String> {
    digest(&File::open(path)?, |_| Ok(()))
        .map_err(|(DigestError::Read(error) | DigestError::Copy(error))| error)
}

/// The errors of [`digest`]. Only `Read` means that the file is damaged.
enum DigestError {
    Read(io::Error),
    Copy(io::Error),
}

/// Hashes the whole file, independent of its position, and passes the content to `copy`.
fn digest(file: &File, mut copy: impl FnMut(&[u8]) -> io::Result<()>) -> Result<String, DigestError> {
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = 0;
    loop {
        let read = match file.read_at(&mut block, at) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(DigestError::Read(error)),
        };
        hasher.update(&block[..read]);
        copy(&block[..read]).map_err(DigestError::Copy)?;
        at += read as u64;
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn checksum<'a>(dir: &Path, manifest: &'a Manifest, part: TemplateFile) -> Result<&'a str, Error> {
    let none = || template_error(dir, part, FileError::Damaged("no checksum in the manifest".to_owned()));
    manifest.sha256.get(&part).map(String::as_str).ok_or_else(none)
}

/// Distinguishes damage of the template from failures of the machine, such as a lack of descriptors or memory.
fn template_error(dir: &Path, part: TemplateFile, unfit: FileError) -> Error {
    match unfit {
        FileError::Damaged(reason) => {
            let reason = format!("{}: {reason}", part.file_name());
            Error::DamagedTemplate { dir: dir.to_owned(), reason }
        }
        FileError::Io(error) => Error::io(dir.join(part.file_name()).display().to_string())(error),
    }
}

/// Copies a file into a sealed memory file and verifies the checksum of the copy.
fn seal_in_memory(dir: &Path, manifest: &Manifest, part: TemplateFile) -> Result<File, Error> {
    let wanted = checksum(dir, manifest, part)?;
    let damaged = |reason: String| template_error(dir, part, FileError::Damaged(reason));
    let source = match File::open(dir.join(part.file_name())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged(error.to_string())),
        other => other.map_err(|error| template_error(dir, part, FileError::Io(error)))?,
    };
    let file = match part {
        TemplateFile::Ram => create_ram(manifest.memory_mb)?,
        _ => {
            memory_file(part.file_name(), 0, Mode::from_raw_mode(0o444)).map_err(Error::io("memory file"))?
        }
    };
    let mut memory = SparseWriter { file: file.into(), at: 0 };
    let found = match digest(&source, |bytes| memory.append(bytes)) {
        Ok(found) => found,
        Err(DigestError::Read(error)) => return Err(damaged(error.to_string())),
        Err(DigestError::Copy(error)) => return Err(Error::io("memory file")(error)),
    };
    if found != wanted {
        return Err(damaged(format!("SHA-256 is {found}, should be {wanted}")));
    }
    let file = memory.finish().map_err(Error::io("memory file"))?.into();
    seal_ram(&file)?;
    Ok(file.into())
}

/// Skips pages of zeros, so that they take no memory.
struct SparseWriter {
    file: File,
    at: u64,
}

impl SparseWriter {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        for page in bytes.chunks(PAGE_OF_ZEROS.len()) {
            if *page != PAGE_OF_ZEROS[..page.len()] {
                self.file.write_all_at(page, self.at)?;
            }
            self.at += page.len() as u64;
        }
        Ok(())
    }

    /// Extends the file by skipped zeros at its end, and returns it.
    fn finish(self) -> io::Result<File> {
        if self.file.metadata()?.len() < self.at {
            self.file.set_len(self.at)?;
        }
        Ok(self.file)
    }
}

#[cfg(test)]
mod tests;
