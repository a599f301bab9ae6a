//! Removes the parts that were found.

use std::{fs, io, path::Path, process::Command};

use anyhow::{Context, bail};
use skep_keeper::{DataDir, lock_data_dir};

use super::{inventory::Item, unit::UNIT_FILE};

impl Item {
    /// Removes the part. It may be gone already.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        match self {
            Self::Unit => remove_unit(),
            Self::Outside { data_dir, image_dir, .. } => {
                skep_keeper::clean_data_dir(data_dir)?;
                Ok(skep_image::clean(image_dir)?)
            }
            Self::Data { folder, entries, .. } => remove_data(folder, entries),
            Self::User => run("userdel", &["skep"]),
            Self::Program => ignore_missing(fs::remove_file("/usr/local/bin/skep")),
        }
    }
}

/// Removes the folders that are shared by all servers of a machine, if they are empty.
pub(super) fn remove_empty_folders() {
    for folder in ["/run/skep/uids", "/run/skep", "/run/skep-tickets"] {
        // Fails if another server, or a worker of tickets, uses the folder.
        let _ = fs::remove_dir(folder);
    }
}

fn remove_unit() -> anyhow::Result<()> {
    run("systemctl", &["disable", "skep"])?;
    ignore_missing(fs::remove_file(UNIT_FILE))?;
    run("systemctl", &["daemon-reload"])
}

fn remove_data(folder: &Path, entries: &[std::path::PathBuf]) -> anyhow::Result<()> {
    // The lock keeps servers from starting in the meantime.
    let held = if folder.join("keeper").is_dir() {
        Some(lock_data_dir(&DataDir::find(folder)?, "no address (skep uninstall runs)")?)
    } else {
        None
    };
    for entry in entries {
        let is_folder = fs::symlink_metadata(entry).is_ok_and(|about| about.is_dir());
        let removed = if is_folder { fs::remove_dir_all(entry) } else { fs::remove_file(entry) };
        ignore_missing(removed).with_context(|| format!("{} cannot be removed", entry.display()))?;
    }
    drop(held);
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => ignore_missing(other),
    }
}

fn ignore_missing(removed: io::Result<()>) -> anyhow::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{program} cannot be started"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {} failed: {}", arguments.join(" "), why.trim());
    }
    Ok(())
}
