//! A template on disk: a folder with a manifest, its files and their checksums.
//!
//! `<image-dir>/<name>/<key>/`, the key a hash of all that went into it, so that servers of different builds
//! share one image directory, and an outdated template is simply not found.

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

mod on_disk;

use on_disk::{OnDisk, Unfit};

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// A megabyte: large enough that hashing, not reading, is what takes the time.
const BLOCK_BYTES: usize = 1 << 20;
const PAGE_OF_ZEROS: [u8; 4096] = [0; 4096];

/// The files of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The kernel.
    Kernel,
    /// The initial ramdisk: agent and modules.
    Initrd,
    /// The shared root file system.
    Root,
    /// Guest memory at rest.
    Ram,
    /// Device state at rest.
    State,
    /// The private disk layer at rest.
    Layer,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 6] = [Part::Kernel, Part::Initrd, Part::Root, Part::Ram, Part::State, Part::Layer];

    /// Its file name in the template's folder.
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

/// What a template is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The hash of its inputs.
    pub key: String,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// What went into it, for people.
    pub inputs: BTreeMap<String, String>,
    /// SHA-256 of each file, in hex.
    pub sha256: BTreeMap<Part, String>,
}

/// The manifest as it lies on disk. Nothing else would notice a flipped bit in the manifest itself.
#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(flatten)]
    manifest: Manifest,
    /// SHA-256 of the manifest as compact JSON, in hex.
    seal: String,
}

impl Manifest {
    /// The text of its file.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn to_file(&self) -> io::Result<Vec<u8>> {
        let sealed = Sealed { manifest: self.clone(), seal: self.seal()? };
        Ok(serde_json::to_vec_pretty(&sealed)?)
    }

    fn seal(&self) -> io::Result<String> {
        Ok(hex(&Sha256::digest(serde_json::to_vec(self)?)))
    }
}

/// The folder of a template in an image directory.
pub fn folder(image_dir: &Path, name: &str, key: &str) -> PathBuf {
    image_dir.join(name).join(key)
}

/// A template, checked against its checksums and held: its root file system open, all else in sealed memory files. It stays
/// whole where its folder is moved or removed.
#[derive(Debug)]
pub struct Template {
    /// What it is.
    pub manifest: Manifest,
    dir: PathBuf,
    /// All but the root file system.
    sealed: BTreeMap<Part, File>,
    /// Too large for memory that nothing can reclaim: guests share it in the page cache.
    root: OnDisk,
}

impl Template {
    /// Reads every file, compares it with its checksum and loads all but the root file system into sealed memory files. It
    /// takes some seconds and blocks.
    ///
    /// # Errors
    /// It is missing, or damaged; the message says which file.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let manifest = read_manifest(dir)?;
        let sealed = Part::ALL.into_iter().filter(|part| *part != Part::Root);
        let sealed = sealed.map(|part| Ok((part, seal_in_memory(dir, &manifest, part)?)));
        let sealed = sealed.collect::<Result<_, Error>>()?;
        let wanted = checksum(dir, &manifest, Part::Root)?;
        let root = OnDisk::open(&dir.join(Part::Root.file_name()), wanted);
        let root = root.map_err(|unfit| unusable(dir, Part::Root, unfit))?;
        Ok(Self { manifest, dir: dir.to_owned(), sealed, root })
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is still what was checked. Cheap, unless something happened to its file on disk that may be harmless: then
    /// that is read again, which takes a second and blocks. What was found damaged once stays so.
    ///
    /// # Errors
    /// [`Error::DamagedTemplate`], which says what of it changed.
    pub fn check(&self) -> Result<(), Error> {
        self.root.check().map_err(|reason| unusable(&self.dir, Part::Root, Unfit::Damaged(reason)))
    }

    /// Opens one of its files for reading, with a position of its own.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn open(&self, part: Part) -> Result<OwnedFd, Error> {
        // By its descriptor: another file may have the name by now.
        let file = self.sealed.get(&part).unwrap_or(self.root.file());
        let opened = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(opened.map_err(Error::io(self.dir.join(part.file_name()).display().to_string()))?.into())
    }

    /// The sealed memory file.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn ram(&self) -> Result<OwnedFd, Error> {
        let ram = self.sealed.get(&Part::Ram).ok_or(io::ErrorKind::NotFound.into());
        let ram = ram.and_then(File::try_clone).map_err(Error::io("memory file"))?;
        Ok(ram.into())
    }
}

/// The manifest of a template's folder.
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
    let Sealed { manifest, seal } =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    match manifest.seal() {
        Ok(wanted) if wanted == seal => Ok(manifest),
        Ok(_) => Err(damaged("it is not what was written".to_owned())),
        Err(error) => Err(damaged(error.to_string())),
    }
}

/// A memory file for a guest's memory. Its mode lets a VMM of any uid open it by `/proc/self/fd`.
///
/// # Errors
/// No memory, no descriptor.
pub fn create_ram(memory_mb: u64) -> Result<OwnedFd, Error> {
    // QEMU 7.2 opens it read-write even where it maps it private; the seals are what guards it.
    let mode = Mode::from_raw_mode(0o777);
    memory_file("skep-ram", memory_mb << 20, mode).map_err(Error::io("memory file"))
}

fn memory_file(name: &str, bytes: u64, mode: Mode) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    fchmod(&file, mode)?;
    Ok(file)
}

/// Makes a memory file unchangeable, whoever holds a descriptor of it.
///
/// # Errors
/// It is mapped shared and writable by somebody.
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
    digest(&File::open(path)?, |_| Ok(())).map_err(|(Fault::Read(error) | Fault::Copy(error))| error)
}

/// What went wrong between a file and its digest: only the first is the file's fault.
enum Fault {
    Read(io::Error),
    Copy(io::Error),
}

/// From its beginning, wherever its position is.
fn digest(file: &File, mut copy: impl FnMut(&[u8]) -> io::Result<()>) -> Result<String, Fault> {
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = 0;
    loop {
        let read = match file.read_at(&mut block, at) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Fault::Read(error)),
        };
        hasher.update(&block[..read]);
        copy(&block[..read]).map_err(Fault::Copy)?;
        at += read as u64;
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn checksum<'a>(dir: &Path, manifest: &'a Manifest, part: Part) -> Result<&'a str, Error> {
    let none = || unusable(dir, part, Unfit::Damaged("no checksum in the manifest".to_owned()));
    manifest.sha256.get(&part).map(String::as_str).ok_or_else(none)
}

/// A machine that is out of descriptors or memory damages no template.
fn unusable(dir: &Path, part: Part, unfit: Unfit) -> Error {
    match unfit {
        Unfit::Damaged(reason) => {
            let reason = format!("{}: {reason}", part.file_name());
            Error::DamagedTemplate { dir: dir.to_owned(), reason }
        }
        Unfit::Io(error) => Error::io(dir.join(part.file_name()).display().to_string())(error),
    }
}

/// Copies a file into a sealed memory file and compares what was copied with its checksum.
fn seal_in_memory(dir: &Path, manifest: &Manifest, part: Part) -> Result<File, Error> {
    let wanted = checksum(dir, manifest, part)?;
    let damaged = |reason: String| unusable(dir, part, Unfit::Damaged(reason));
    let source = match File::open(dir.join(part.file_name())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged(error.to_string())),
        other => other.map_err(|error| unusable(dir, part, Unfit::Io(error)))?,
    };
    let file = match part {
        Part::Ram => create_ram(manifest.memory_mb)?,
        _ => {
            memory_file(part.file_name(), 0, Mode::from_raw_mode(0o444)).map_err(Error::io("memory file"))?
        }
    };
    let mut memory = SparseWriter { file: file.into(), at: 0 };
    let found = match digest(&source, |bytes| memory.append(bytes)) {
        Ok(found) => found,
        Err(Fault::Read(error)) => return Err(damaged(error.to_string())),
        Err(Fault::Copy(error)) => return Err(Error::io("memory file")(error)),
    };
    if found != wanted {
        return Err(damaged(format!("SHA-256 is {found}, should be {wanted}")));
    }
    let file = memory.finish().map_err(Error::io("memory file"))?.into();
    seal_ram(&file)?;
    Ok(file.into())
}

/// Leaves pages of zeros out: they cost no memory then.
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

    /// The file, zeros at its end included.
    fn finish(self) -> io::Result<File> {
        if self.file.metadata()?.len() < self.at {
            self.file.set_len(self.at)?;
        }
        Ok(self.file)
    }
}

#[cfg(test)]
mod tests;
