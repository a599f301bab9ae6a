//! The manifest of a template: what it was baked from, and the checksums of its files.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Error, TemplateFile,
    checksum::hex,
    damage::{FileError, template_error},
};

/// Name of the manifest's file in a template's folder.
pub const MANIFEST: &str = "manifest.json";
/// Number of the format that this release writes: fields of the manifest and how its checksums are computed.
pub const FORMAT: u32 = 2;
/// The format of manifests without a number. Their checksums covered the bytes of holes, too.
const FIRST_FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`] of the release that wrote it.
    // Left out of the JSON of the first format, so that the seals of its manifests stay valid.
    #[serde(default = "first_format", skip_serializing_if = "is_first_format")]
    pub format: u32,
    /// The hash of its inputs.
    pub key: String,
    /// The key of the template that the VM of a snapshot was restored from. `None` for a baked template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
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

    /// Whether it is a snapshot of a VM that ran, rather than of one that was baked.
    pub fn is_snapshot(&self) -> bool {
        self.sha256.contains_key(&TemplateFile::Delta)
    }

    /// The files of the template.
    pub(crate) fn files(&self) -> impl Iterator<Item = TemplateFile> {
        let of_snapshots = if self.is_snapshot() { &TemplateFile::OF_SNAPSHOTS[..] } else { &[] };
        TemplateFile::ALL.iter().chain(of_snapshots).copied()
    }

    /// The checksum that a file of the template in `dir` must have.
    pub(crate) fn checksum(&self, dir: &Path, part: TemplateFile) -> Result<&str, Error> {
        let none = || template_error(dir, part, FileError::Damaged("no checksum in the manifest".to_owned()));
        self.sha256.get(&part).map(String::as_str).ok_or_else(none)
    }

    fn seal(&self) -> io::Result<String> {
        Ok(hex(&Sha256::digest(serde_json::to_vec(self)?)))
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
            return Err(Error::Missing(dir.to_owned()));
        }
        Err(error) => return Err(Error::io(dir.join(MANIFEST).display())(error)),
    };
    let damaged = |reason: String| Error::Damaged {
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
