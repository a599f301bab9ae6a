//! A template on disk: a folder with a manifest, its files and their checksums.
//!
//! `<image-dir>/<name>/<key>/`, the key a hash of all that went into it, so that servers of different builds
//! share one image directory, and an outdated template is simply not found.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// A megabyte: large enough that hashing, not reading, is what takes the time.
const BLOCK_BYTES: usize = 1 << 20;

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

/// The folder of a template in an image directory.
pub fn folder(image_dir: &Path, name: &str, key: &str) -> PathBuf {
    image_dir.join(name).join(key)
}

/// A template, checked against its checksums, its memory loaded. Running VMs keep what they need of it alive.
#[derive(Debug)]
pub struct Template {
    /// What it is.
    pub manifest: Manifest,
    dir: PathBuf,
    ram: OwnedFd,
}

impl Template {
    /// Reads every file, compares it with its checksum and loads the memory into a sealed memory file. It takes about a
    /// second and blocks.
    ///
    /// # Errors
    /// It is missing, or damaged; the message says which file.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let manifest = read_manifest(dir)?;
        for part in Part::ALL.into_iter().filter(|part| *part != Part::Ram) {
            check(dir, &manifest, part, &mut io::sink())?;
        }
        let ram = create_ram(manifest.memory_mb)?;
        let mut writer =
            SparseWriter { file: File::from(ram.try_clone().map_err(Error::io("memory file"))?), at: 0 };
        check(dir, &manifest, Part::Ram, &mut writer)?;
        seal_ram(&ram)?;
        Ok(Self { manifest, dir: dir.to_owned(), ram })
    }

    /// Opens one of its files for reading.
    ///
    /// # Errors
    /// It is gone since the template was loaded.
    pub fn open(&self, part: Part) -> Result<OwnedFd, Error> {
        let path = self.dir.join(part.file_name());
        Ok(File::open(&path).map_err(Error::io(path.display().to_string()))?.into())
    }

    /// The sealed memory file.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn ram(&self) -> Result<OwnedFd, Error> {
        self.ram.try_clone().map_err(Error::io("memory file"))
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
    serde_json::from_slice(&text).map_err(|error| Error::DamagedTemplate {
        dir: dir.to_owned(),
        reason: format!("{MANIFEST} cannot be read: {error}"),
    })
}

/// A memory file for a guest's memory. Its mode lets a VMM of any uid open it by `/proc/self/fd`.
///
/// # Errors
/// No memory, no descriptor.
pub fn create_ram(memory_mb: u64) -> Result<OwnedFd, Error> {
    let make = || -> io::Result<OwnedFd> {
        let ram = memfd_create("skep-ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&ram, memory_mb << 20)?;
        // QEMU 7.2 opens it read-write even where it maps it private; the seals are what guards it.
        fchmod(&ram, Mode::from_raw_mode(0o777))?;
        Ok(ram)
    };
    make().map_err(Error::io("memory file"))
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

/// Copies a file and tells its SHA-256 in hex.
///
/// # Errors
/// Reading or writing failed.
pub fn hash_file(path: &Path, copy: &mut dyn Write) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&block[..read]);
        copy.write_all(&block[..read])?;
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check(dir: &Path, manifest: &Manifest, part: Part, copy: &mut dyn Write) -> Result<(), Error> {
    let damaged = |reason: String| Error::DamagedTemplate {
        dir: dir.to_owned(),
        reason: format!("{}: {reason}", part.file_name()),
    };
    let found = hash_file(&dir.join(part.file_name()), copy).map_err(|error| damaged(error.to_string()))?;
    match manifest.sha256.get(&part) {
        Some(wanted) if *wanted == found => Ok(()),
        Some(wanted) => Err(damaged(format!("SHA-256 is {found}, should be {wanted}"))),
        None => Err(damaged("no checksum in the manifest".to_owned())),
    }
}

/// Leaves pages of zeros out: they cost no memory then.
struct SparseWriter {
    file: File,
    at: u64,
}

impl Write for SparseWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for page in bytes.chunks(4096) {
            if page.iter().any(|byte| *byte != 0) {
                std::os::unix::fs::FileExt::write_all_at(&self.file, page, self.at)?;
            }
            self.at += page.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
