//! `skep restore`: replaces the store with a backup while no server runs.

use std::{
    fs::File,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::OFlags;
use skep_keeper::{DataDir, LockGuard, lock_data_dir};
use skep_store::sqlite::{Restored, restore};

use crate::{
    output,
    privileges::as_owner_of,
    settings::{DataDirOption, DataFolder},
};

const ENDED_VMS_NOTE: &str = "VMs that were booted since the backup are not in it: the next start of the server ends those that still run";
/// Appears in the error message of a server that is started during the restore.
const HOLDER_NOTE: &str = "no address (`skep restore` is at work, and done soon)";

/// Replace the store with a backup; no server may run.
///
/// The old store is kept beside the new one.
///
/// VMs that were booted since the backup are ended at the next start, because the store does not know them. VMs of the
/// backup that no longer run are recorded as lost. Keys that were revoked since the backup are valid again: see `skep
/// keys list`. Event streams cannot continue from cursors of before the restore; they start anew.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// File created by `skep backup`.
    file: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDirOption,
}

pub(crate) fn run(verb: Restore) -> anyhow::Result<ExitCode> {
    let data_dir = verb.data_dir.folder()?;
    let (store, folder) = (data_dir.store(), data_dir.server_dir());
    if !folder.is_dir() {
        bail!(
            "{} is not a data directory: start `skep serve` there once and stop it, or name another by --data-dir",
            data_dir.path().display()
        );
    }
    // With the current user: only root may be able to read the file.
    let mut copy = open(&verb.file)?;
    let _lock = lock_out_servers(&data_dir)?;
    let Restored { version, epoch, old } =
        as_owner_of(&folder, || Ok(restore(&store, &mut copy, &verb.file)?))?;
    if verb.json {
        let done = serde_json::json!({
            "store": store, "version": version, "epoch": epoch, "old": old, "vms_booted_since": "ended at the next start",
        });
        output::value(&done)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&format!("{} restored from {}: version {version}", store.display(), verb.file.display()))?;
    if let Some(old) = old {
        output::line(&format!(
            "the old store is kept as {}; remove it when you no longer need it",
            old.display()
        ))?;
    }
    output::line("keys that were revoked since the backup are valid again: see `skep keys list`")?;
    output::line(ENDED_VMS_NOTE)?;
    Ok(ExitCode::SUCCESS)
}

fn open(file: &Path) -> anyhow::Result<File> {
    let shown = file.display();
    // Opening a FIFO must not block.
    let opened = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(file);
    let opened = opened.with_context(|| format!("{shown} cannot be read"))?;
    if !opened.metadata().is_ok_and(|found| found.is_file()) {
        bail!("{shown} is no file; name one created by `skep backup`");
    }
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    if Path::new(&log).metadata().is_ok_and(|log| log.len() > 0) {
        bail!("{shown} has a log beside it, so it is a store in use and not a backup; use `skep backup`");
    }
    Ok(opened)
}

/// Keeps servers from starting until the lock is dropped.
fn lock_out_servers(data_dir: &DataFolder) -> anyhow::Result<LockGuard> {
    // A lock file that belongs to root would lock the owner out.
    as_owner_of(data_dir.path(), || Ok(lock_data_dir(&DataDir::open(data_dir.path())?, HOLDER_NOTE)?))
}
