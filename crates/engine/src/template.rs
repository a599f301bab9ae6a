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
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;

mod checksum;
mod verified_file;

pub use checksum::checksum_of;
use checksum::{ChecksumError, checksum};
use verified_file::{FileError, VerifiedFile};

pub const MANIFEST: &str = "manifest.json";
/// Number of the format that this release writes: fields of the manifest and how its checksums are computed.
pub const FORMAT: u32 = 2;
/// The format of manifests without a number. Their checksums covered the bytes of holes, too.
const FIRST_FORMAT: u32 = 1;
const RAM_NAME: &str = "skep-ram";
/// Any uid may open guest memory by `/proc/self/fd`. QEMU 7.2 opens it read-write even to map it private; the seals
/// protect it.
const RAM_MODE: Mode = Mode::from_raw_mode(0o777);

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
    /// [`FORMAT`] of the release that wrote it.
    // Left out of the JSON of the first format, so that the seals of its manifests stay valid.
    #[serde(default = "first_format", skip_serializing_if = "is_first_format")]
    pub format: u32,
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
    /// The checksum of each file, by [`checksum_of`].
    pub sha256: BTreeMap<TemplateFile, String>,
}

fn first_format() -> u32 {
    FIRST_FORMAT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first_format(format: &u32) -> bool {
    *format == FIRST_FORMAT
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
    /// Reads the data of every file, verifies its checksum and loads all but the root file system into sealed memory
    /// files. Blocks for a fraction of a second.
    ///
    /// # Errors
    /// The template is missing, outdated or damaged; the message names the file.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let manifest = read_manifest(dir)?;
        if manifest.format != FORMAT {
            let reason = format!("its manifest has format {}, this skep reads {FORMAT}", manifest.format);
            return Err(Error::OutdatedTemplate { dir: dir.to_owned(), reason });
        }
        // The root file system is larger than all other files together.
        let (sealed, root) = thread::scope(|scope| {
            let root = scope.spawn(|| open_root(dir, &manifest));
            let sealed = TemplateFile::ALL.into_iter().filter(|part| *part != TemplateFile::Root);
            let sealed = sealed.map(|part| Ok((part, seal_in_memory(dir, &manifest, part)?)));
            let sealed = sealed.collect::<Result<_, Error>>();
            (sealed, root.join().unwrap_or_else(|panic| resume_unwind(panic)))
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

/// Creates a memory file for guest memory.
///
/// # Errors
/// No memory or no descriptor is available.
pub fn create_ram(memory_mb: u64) -> Result<OwnedFd, Error> {
    memory_file(RAM_NAME, memory_mb << 20, RAM_MODE).map_err(Error::io("memory file"))
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

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn open_root(dir: &Path, manifest: &Manifest) -> Result<VerifiedFile, Error> {
    let wanted = checksum_in(dir, manifest, TemplateFile::Root)?;
    let opened = VerifiedFile::open(&dir.join(TemplateFile::Root.file_name()), wanted);
    opened.map_err(|unfit| template_error(dir, TemplateFile::Root, unfit))
}

fn checksum_in<'a>(dir: &Path, manifest: &'a Manifest, part: TemplateFile) -> Result<&'a str, Error> {
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

/// Copies the data of a file into a sealed memory file and verifies the checksum of the copy. Holes and pages of zeros take
/// no memory, so that a disk layer of any size takes little.
fn seal_in_memory(dir: &Path, manifest: &Manifest, part: TemplateFile) -> Result<File, Error> {
    let wanted = checksum_in(dir, manifest, part)?;
    let damaged = |reason: String| template_error(dir, part, FileError::Damaged(reason));
    let unreadable = |error| template_error(dir, part, FileError::Io(error));
    let source = match File::open(dir.join(part.file_name())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged(error.to_string())),
        other => other.map_err(unreadable)?,
    };
    let length = source.metadata().map_err(unreadable)?.len();
    let memory = match part {
        TemplateFile::Ram => memory_file(RAM_NAME, length, RAM_MODE),
        _ => memory_file(part.file_name(), length, Mode::from_raw_mode(0o444)),
    };
    let memory = File::from(memory.map_err(Error::io("memory file"))?);
    let found = match checksum(&source, |at, bytes| memory.write_all_at(bytes, at)) {
        Ok(found) => found,
        Err(ChecksumError::Read(error)) => return Err(damaged(error.to_string())),
        Err(ChecksumError::Copy(error)) => return Err(Error::io("memory file")(error)),
    };
    if found != wanted {
        return Err(damaged(format!("SHA-256 is {found}, should be {wanted}")));
    }
    let memory = memory.into();
    seal_ram(&memory)?;
    Ok(memory.into())
}

#[cfg(test)]
mod tests;
