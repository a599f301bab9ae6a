//! `skep backup`: copies the store directly, with or without a running server.

use std::{
    io::{ErrorKind, copy},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use skep_store::sqlite::{Backup as Made, backup};
use tempfile::NamedTempFile;

use crate::{output, privileges::as_owner_of, settings::DataDirOption};

/// Free space in bytes that a running server may need during the backup.
const SPARE_BYTES: u64 = 64 << 20;

/// Copy the store to a file; a server may keep running.
///
/// The file has accounts, key hashes, tickets, events and VM records, all at the same point in time. Workspaces,
/// templates and admin.key are not included.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// New file. It is readable for its owner only and appears when it is complete.
    file: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDirOption,
}

pub(crate) fn run(verb: Backup) -> anyhow::Result<ExitCode> {
    let folder = verb.data_dir.folder()?;
    let (store, file) = (folder.store(), std::path::absolute(&verb.file)?);
    if file.symlink_metadata().is_ok() && !verb.force {
        return Err(already_exists(&file));
    }
    if !folder.server_dir().is_dir() {
        return Err(no_store(&store));
    }
    let target_dir = folder_of(&file)?;
    // A temporary file with mode 0600 until the copy is complete.
    let mut new = NamedTempFile::new_in(&target_dir)
        .with_context(|| format!("nothing can be written in {}; name another file", target_dir.display()))?;
    let made = as_owner_of(&folder.server_dir(), || {
        let size = match store.metadata() {
            Ok(found) => found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_store(&store)),
            Err(error) => {
                let describe =
                    || format!("{} cannot be read; run this as root or its owner", store.display());
                return Err(error).with_context(describe);
            }
        };
        check_free_space(&folder.server_dir(), size)?;
        Ok(backup(&store)?)
    })?;
    let Made { file: mut whole, version, size_bytes } = made;
    copy(&mut whole, new.as_file_mut()).and_then(|_| new.as_file().sync_all()).with_context(|| {
        format!("{} cannot be written; free some space or name another file", target_dir.display())
    })?;
    persist(new, &file, verb.force)?;
    // Without it, ext4 may lose the new name in a power cut.
    std::fs::File::open(&target_dir)?.sync_all()?;
    if verb.json {
        output::value(&serde_json::json!({"file": file, "version": version, "size_bytes": size_bytes}))?;
    } else {
        output::line(&format!("{} holds the store: version {version}, {size_bytes} bytes", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder of a new file.
fn folder_of(file: &Path) -> anyhow::Result<PathBuf> {
    match file.parent() {
        Some(folder) if folder.is_dir() && file.file_name().is_some() && !file.is_dir() => {
            Ok(folder.to_owned())
        }
        _ => bail!("{} cannot be a file; name one in an existing folder", file.display()),
    }
}

/// Checks the free space: a backup must not fill the server's disk.
fn check_free_space(folder: &Path, size: u64) -> anyhow::Result<()> {
    let disk = rustix::fs::statvfs(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let (free, needed) = (disk.f_bavail.saturating_mul(disk.f_frsize), size.saturating_add(SPARE_BYTES));
    if free < needed {
        let (folder, free, needed) = (folder.display(), free >> 20, needed >> 20);
        bail!("the backup needs {needed} MiB in {folder}, where {free} MiB are free; free some space");
    }
    Ok(())
}

fn persist(new: NamedTempFile, file: &Path, force: bool) -> anyhow::Result<()> {
    let kept = if force { new.persist(file) } else { new.persist_noclobber(file) };
    match kept {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(already_exists(file)),
        Err(error) => Err(error.error).with_context(|| format!("{} cannot be created", file.display())),
    }
}

fn no_store(store: &Path) -> anyhow::Error {
    let shown = store.display();
    anyhow::anyhow!("no store at {shown}: start `skep serve` once, or name its folder with --data-dir")
}

fn already_exists(file: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} already exists; name another file, or replace it with --force", file.display())
}
