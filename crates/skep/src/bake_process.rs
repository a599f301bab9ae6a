//! Runs a bake in a process of its own: a bake handles the signals of its process itself, and the keeper must keep
//! receiving its own.

use std::{
    ffi::OsString,
    fmt,
    io::{BufRead, BufReader},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStringExt, process::CommandExt},
    },
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use skep_image::{Origin, TemplateBuilder};

/// The prefix of progress lines of `skep bake` on standard error.
const STEP_PREFIX: &str = "bake: ";

/// The process of a bake failed.
#[derive(Debug)]
pub(crate) struct BakeFailed {
    pub(crate) status: ExitStatus,
    /// Its last output, which may name paths of this machine.
    pub(crate) last_line: String,
}

impl std::error::Error for BakeFailed {}

impl fmt::Display for BakeFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the bake failed ({}): {}", self.status, self.last_line)
    }
}

/// Bakes a template if it is missing or damaged, logs and reports each step, and returns its folder. `started` gets the
/// pidfd of the process. Blocks. If the calling thread ends first, the bake gets SIGTERM and leaves nothing behind.
pub(crate) fn run(
    template_builder: &TemplateBuilder,
    started: impl FnOnce(OwnedFd),
    report: impl Fn(&str),
) -> anyhow::Result<PathBuf> {
    let mut command = command(template_builder);
    end_with_this_thread(&mut command);
    let mut child = command.spawn().context("the bake could not be started")?;
    started(pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context("pidfd of the bake")?);
    let mut last_line = String::new();
    for line in child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).lines()) {
        let line = line.context("the output of the bake cannot be read")?;
        match line.strip_prefix(STEP_PREFIX) {
            Some(step) => {
                tracing::info!(step, "bake: {step}");
                report(step);
            }
            None => last_line = line,
        }
    }
    let output = child.wait_with_output().context("the bake process cannot be waited for")?;
    if !output.status.success() {
        return Err(BakeFailed { status: output.status, last_line }.into());
    }
    let mut dir = output.stdout;
    dir.truncate(dir.trim_ascii_end().len());
    Ok(PathBuf::from(OsString::from_vec(dir)))
}

/// The command with all settings of the template builder as flags, because the settings file and the environment
/// may have changed since the keeper was started.
fn command(template_builder: &TemplateBuilder) -> Command {
    let TemplateBuilder { image_dir, size, origin, .. } = template_builder;
    let mut command = Command::new("/proc/self/exe");
    match origin {
        Origin::Packages => _ = command.arg("bake"),
        Origin::Parent { id, shelf, parent, system } => {
            command.arg("bake-template").args(["--id", &id.to_string()]);
            command.arg("--shelf").arg(shelf).arg("--parent").arg(parent);
            if let Some(system) = system {
                command.arg("--system").arg(system);
            }
        }
    }
    command.arg("--image-dir").arg(image_dir);
    for (flag, value) in [
        ("--base-memory-mb", size.memory_mb),
        ("--base-vcpus", size.vcpus.into()),
        ("--base-disk-mb", size.disk_mb),
    ] {
        command.arg(flag).arg(value.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn end_with_this_thread(command: &mut Command) {
    let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: the closure makes one system call between fork and exec; it allocates no memory and takes no lock.
    unsafe { command.pre_exec(end_with_parent) };
}
