//! A bake beside a keeper that runs, in a process of its own: a bake takes the signals of its process for itself, and those
//! of a keeper are meant for the keeper.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader},
    os::unix::{ffi::OsStringExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use rustix::process::{Signal, set_parent_process_death_signal};

/// How a step begins in what `skep bake` tells.
const STEP: &str = "bake: ";

/// Bakes the base template where it is missing or damaged, logs each step and gives its folder. Blocks. Where the calling
/// thread ends before, the bake is told to stop and leaves nothing.
pub(crate) fn run(image_dir: &Path) -> anyhow::Result<PathBuf> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("bake").arg("--image-dir").arg(image_dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_this_thread(&mut command);
    let mut child = command.spawn().context("the bake could not be started")?;
    let mut last_words = String::new();
    for line in child.stderr.take().into_iter().flat_map(|told| BufReader::new(told).lines()) {
        let line = line.context("what the bake tells cannot be read")?;
        match line.strip_prefix(STEP) {
            Some(step) => tracing::info!(step, "bake: {step}"),
            None => last_words = line,
        }
    }
    let output = child.wait_with_output().context("the bake's end cannot be waited for")?;
    if !output.status.success() {
        bail!("the bake failed ({}): {last_words}", output.status);
    }
    let mut dir = output.stdout;
    dir.truncate(dir.trim_ascii_end().len());
    Ok(PathBuf::from(OsString::from_vec(dir)))
}

fn end_with_this_thread(command: &mut Command) {
    let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec it makes one system call: no memory is allocated, no lock is taken.
    unsafe { command.pre_exec(end_with_parent) };
}
