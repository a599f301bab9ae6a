//! Runs `skep bake` in a process of its own: a bake handles the signals of its process itself, and the keeper must keep
//! receiving its own.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader},
    os::unix::{ffi::OsStringExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use skep_image::GuestSize;

/// The prefix of progress lines of `skep bake` on standard error.
const STEP_PREFIX: &str = "bake: ";

/// Bakes the base template if it is missing or damaged, logs each step and returns its folder. Blocks. If the calling
/// thread ends first, the bake gets SIGTERM and leaves nothing behind.
pub(crate) fn run(image_dir: &Path, size: GuestSize, shell_ahead: bool) -> anyhow::Result<PathBuf> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("bake").arg("--image-dir").arg(image_dir);
    // Flags, because the settings file and the environment may have changed since the keeper was started.
    command.args(["--shell-ahead", if shell_ahead { "auto" } else { "off" }]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (flag, value) in [
        ("--base-memory-mb", size.memory_mb),
        ("--base-vcpus", size.vcpus.into()),
        ("--base-disk-mb", size.disk_mb),
    ] {
        command.arg(flag).arg(value.to_string());
    }
    end_with_this_thread(&mut command);
    let mut child = command.spawn().context("the bake could not be started")?;
    let mut last_line = String::new();
    for line in child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).lines()) {
        let line = line.context("the output of the bake cannot be read")?;
        match line.strip_prefix(STEP_PREFIX) {
            Some(step) => tracing::info!(step, "bake: {step}"),
            None => last_line = line,
        }
    }
    let output = child.wait_with_output().context("the bake process cannot be waited for")?;
    if !output.status.success() {
        bail!("the bake failed ({}): {last_line}", output.status);
    }
    let mut dir = output.stdout;
    dir.truncate(dir.trim_ascii_end().len());
    Ok(PathBuf::from(OsString::from_vec(dir)))
}

fn end_with_this_thread(command: &mut Command) {
    let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: the closure makes one system call between fork and exec; it allocates no memory and takes no lock.
    unsafe { command.pre_exec(end_with_parent) };
}
