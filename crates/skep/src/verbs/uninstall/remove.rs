//! Removes the parts that were found.

use std::{fs, io, path::Path, process::Command};

use anyhow::{Context, bail};
use skep_keeper::{DataDir, hold};

use super::{find::Thing, unit::UNIT};

impl Thing {
    /// Removes the part. It may be gone already.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        match self {
            Self::Unit => remove_unit(),
            Self::Outside { data_dir, image_dir, .. } => {
                skep_keeper::clean(data_dir)?;
                Ok(skep_image::clean(image_dir)?)
            }
            Self::Data { folder, entries, .. } => remove_data(folder, entries),
            Self::User => run("userdel", &["skep"]),
            Self::Program => gone(fs::remove_file("/usr/local/bin/skep")),
        }
    }
}

/// Removes the folders that are shared by all servers of a machine, if they are empty.
pub(super) fn empty_folders() {
    for folder in ["/run/skep/uids", "/run/skep"] {
        // Fails if another server uses the folder.
        let _ = fs::remove_dir(folder);
    }
}

fn remove_unit() -> anyhow::Result<()> {
    run("systemctl", &["disable", "skep"])?;
    gone(fs::remove_file(UNIT))?;
    run("systemctl", &["daemon-reload"])
}

fn remove_data(folder: &Path, entries: &[std::path::PathBuf]) -> anyhow::Result<()> {
    // The lock keeps servers from starting in the meantime.
    let held = if folder.join("keeper").is_dir() {
        Some(hold(&DataDir::find(folder)?, "no address (skep uninstall runs)")?)
    } else {
        None
    };
    for entry in entries {
        let is_folder = fs::symlink_metadata(entry).is_ok_and(|about| about.is_dir());
        let removed = if is_folder { fs::remove_dir_all(entry) } else { fs::remove_file(entry) };
        gone(removed).with_context(|| format!("{} cannot be removed", entry.display()))?;
    }
    drop(held);
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => gone(other),
    }
}

fn gone(removed: io::Result<()>) -> anyhow::Result<()> {
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
