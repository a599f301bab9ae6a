//! Snapshots of VMs on disk. A snapshot has the folder of a template, with what its guest changed instead of another memory:
//! kernel, initial ramdisk, root file system and memory are those of the template that the VM was booted from, as further
//! links to its files. So they stay as long as a snapshot needs them, also when that template is built anew or removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write},
    os::fd::AsRawFd,
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use rustix::{
    fs::{AtFlags, CWD, linkat},
    io::Errno,
};
use sha2::{Digest, Sha256};
use skep_api::{ErrorCode, Failure, TemplateId, templates::GuestSize};
use skep_keeper::CapturedFiles;
use skep_template::{
    Error, MANIFEST, Manifest, TemplateFile, checksum_of, copy_sparse, hex, link_or_copy, read_manifest,
    shelf,
};

use super::{Kind, built_templates, entry::Phase};

/// Hex digits of a key, as those of baked templates.
const KEY_DIGITS: usize = 16;

/// The size of a VM that was booted from the template in `origin`.
///
/// # Errors
/// The template is damaged.
pub(super) fn size(origin: &Path, captured: &CapturedFiles<'_>) -> Result<GuestSize, Error> {
    let Manifest { memory_mb, vcpus, .. } = read_manifest(origin)?;
    let disk_mb = captured.layer.metadata().map_err(Error::io("disk layer"))?.len() >> 20;
    Ok(GuestSize { memory_mb, vcpus, disk_mb })
}

/// Writes a snapshot of a VM that was booted from the template in `origin`, and returns its folder, which is made below that
/// of the new template.
///
/// # Errors
/// The disk is full. No complete snapshot is left behind then.
pub(super) fn write(origin: &Path, folder: &Path, captured: &CapturedFiles<'_>) -> Result<PathBuf, Error> {
    let work = shelf::create_partial_snapshot(folder)?;
    let of_origin = read_manifest(origin)?;
    let write = || {
        let mut sha256 = BTreeMap::new();
        for part in TemplateFile::OF_ORIGIN {
            let name = part.file_name();
            link_or_copy(&origin.join(name), &work.path().join(name))?;
            sha256.extend(of_origin.sha256.get(&part).map(|sum| (part, sum.clone())));
        }
        // Both the delta and the layer can be large: they are hashed and written to disk at the same time.
        thread::scope(|scope| {
            let layer = scope.spawn(|| link_layer(captured.layer, work.path()));
            for (part, source) in [
                (TemplateFile::State, captured.state),
                (TemplateFile::Delta, captured.delta),
                (TemplateFile::Pages, captured.pages),
            ] {
                sha256.insert(part, copy_sparse(source, &work.path().join(part.file_name()))?);
            }
            sha256.insert(TemplateFile::Layer, layer.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            io::Result::Ok(())
        })?;
        let manifest =
            Manifest { origin: Some(of_origin.key.clone()), key: key_of(&sha256), sha256, ..of_origin };
        let mut file = File::create(work.path().join(MANIFEST))?;
        file.write_all(&manifest.to_file()?)?;
        file.sync_all()?;
        File::open(work.path())?.sync_all()?;
        io::Result::Ok(manifest)
    };
    let manifest = write().map_err(Error::io(folder.display()))?;
    tracing::debug!("the files of a snapshot are written, and not complete yet: {}", folder.display());
    let dir = folder.join(&manifest.key);
    shelf::publish(work, &dir)?;
    Ok(dir)
}

/// Gives the disk layer a name in the folder and writes it to disk. Returns its checksum. It is copied if the folder is on
/// another file system.
fn link_layer(layer: &File, folder: &Path) -> io::Result<String> {
    let path = folder.join(TemplateFile::Layer.file_name());
    let own = format!("/proc/self/fd/{}", layer.as_raw_fd());
    match linkat(CWD, own, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::XDEV) => return copy_sparse(layer, &path),
        other => other?,
    }
    layer.sync_all()?;
    checksum_of(&path)
}

/// A snapshot is identified by its content: it cannot be made again from inputs.
fn key_of(sha256: &BTreeMap<TemplateFile, String>) -> String {
    let mut hasher = Sha256::new();
    for (part, sum) in sha256 {
        hasher.update(format!("{}={sum}\n", part.file_name()));
    }
    hex(&hasher.finalize())[..KEY_DIGITS].to_owned()
}

/// The complete snapshot in the folder of a template.
///
/// # Errors
/// The folder, or what is in it, cannot be read. Whether there is a complete snapshot is not known then.
pub(super) fn find(folder: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let dir = entry?.path();
        if dir.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
            && is_file(&dir.join(MANIFEST))?
        {
            return Ok(Some(dir));
        }
    }
    Ok(None)
}

/// Unlike [`Path::is_file`], this tells a file that is missing from one that cannot be read now.
fn is_file(path: &Path) -> io::Result<bool> {
    match path.metadata() {
        Ok(found) => Ok(found.is_file()),
        // The second one: a file is beside the folders.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The keys of the templates that VMs on disk were restored from at first. Once such a VM runs again, a copy of it needs the
/// files of that template.
pub(super) fn origin_keys(shelf: &Path) -> io::Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for (id, recipe) in built_templates(shelf)? {
        if recipe.kind == Kind::Pause
            && let Some(dir) = find(&shelf.join(id.to_string()))?
            && let Ok(Manifest { origin: Some(key), .. }) = read_manifest(&dir)
        {
            keys.insert(key);
        }
    }
    Ok(keys)
}

/// The phase of a snapshot whose VM was booted where this differed, which is logged.
pub(super) fn outdated(id: TemplateId, difference: &str) -> Phase {
    tracing::warn!(
        "the snapshot {id} is outdated, and its memory cannot be used: its VM was booted {difference}"
    );
    Phase::Outdated { reason: format!("its VM was booted {difference}") }
}

/// The error for a caller, without paths.
pub(super) fn not_stored(id: TemplateId, error: &Error) -> Failure {
    tracing::error!(%error, "the snapshot {id} could not be written: {error}");
    match error {
        Error::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
        {
            let message = "no space is left on the server for the snapshot; delete a template, or end a VM";
            Failure::new(ErrorCode::NoCapacity, message)
        }
        _ => Failure::new(
            ErrorCode::Internal,
            "the snapshot could not be written; the log of the server has the reason",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_with_a_manifest_is_a_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        for partial in [".partial-x", "0123"] {
            fs::create_dir(folder.path().join(partial)).unwrap();
        }
        fs::write(folder.path().join(".partial-x").join(MANIFEST), "{}").unwrap();
        fs::write(folder.path().join("recipe.json"), "{}").unwrap();
        assert_eq!(find(folder.path()).unwrap(), None);
        let complete = folder.path().join("4567");
        fs::create_dir(&complete).unwrap();
        fs::write(complete.join(MANIFEST), "{}").unwrap();
        assert_eq!(find(folder.path()).unwrap(), Some(complete));
    }
}
