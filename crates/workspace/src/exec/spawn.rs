//! Starting the shell of a command: checks of the request, and the steps between fork and exec.

use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, getpid, set_child_subreaper};
use skep_api::exec::RunCommand;
use tokio::net::unix::pipe;

use super::shell::Shell;
use crate::{Error, Place};

/// The longest argument that the kernel accepts: 32 pages, including the terminating NUL.
const MAX_ARGUMENT_BYTES: usize = 32 * 4096 - 1;

/// A started shell, and our ends of its pipes.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) shell: Shell,
    pub(super) stdin: Option<pipe::Sender>,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

/// Fails for a request that no shell can run.
pub(super) fn check(command: &RunCommand) -> Result<(), Error> {
    text_without_nul("command", &command.command)?;
    if command.command.len() > MAX_ARGUMENT_BYTES {
        let reason = format!(
            "has {} bytes, and the kernel accepts {MAX_ARGUMENT_BYTES}; pass long data by `stdin`",
            command.command.len()
        );
        return Err(Error::InvalidValue { field: "command", reason });
    }
    if command.timeout_ms == 0 {
        let reason = "must be at least 1 ms, not 0".to_owned();
        return Err(Error::InvalidValue { field: "timeout", reason });
    }
    for (name, value) in &command.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            let reason =
                format!("has a variable `{}`; a name is not empty and holds no `=`", name.escape_debug());
            return Err(Error::InvalidValue { field: "env", reason });
        }
        text_without_nul("env", value)?;
    }
    Ok(())
}

fn text_without_nul(field: &'static str, text: &str) -> Result<(), Error> {
    match text.find('\0') {
        None => Ok(()),
        Some(at) => {
            let reason = format!("contains a NUL byte at {at}, which programs cannot receive; leave it out");
            Err(Error::InvalidValue { field, reason })
        }
    }
}

/// The resolved working directory of the command.
pub(super) fn working_directory(cwd: Option<&str>, place: &Place) -> Result<PathBuf, Error> {
    let named = cwd.map(str::to_owned);
    let text = named.unwrap_or_else(|| place.default_cwd().to_string_lossy().into_owned());
    let text = text.as_str();
    text_without_nul("cwd", text)?;
    if !text.starts_with('/') {
        let reason = format!("is `{text}`; it must be an absolute path");
        return Err(Error::InvalidValue { field: "cwd", reason });
    }
    let path = || text.to_owned();
    let real = Path::new(text).canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::UnknownDirectory { path: path() },
        io::ErrorKind::NotADirectory => Error::NotADirectory { path: path() },
        _ => Error::NotStarted { source: error },
    })?;
    if !place.root_paths().any(|folder| real.starts_with(folder)) {
        return Err(Error::OutsideRoot { path: path() });
    }
    if !real.is_dir() {
        return Err(Error::NotADirectory { path: path() });
    }
    Ok(real)
}

/// Starts the shell. With `entrance`, the shell joins that control group; without it, the shell becomes a subreaper,
/// so that all its descendants stay below it.
///
/// Blocks during the fork, which is short; a guest has only one CPU that could run it anyway.
pub(super) fn spawn(
    command: &RunCommand,
    cwd: &Path,
    entrance: Option<File>,
    place: &Place,
) -> io::Result<(Pid, Spawned)> {
    let mut shell = Command::new("/bin/sh");
    // A command that begins with `-` is not an option.
    shell.args(["-c", "--", &command.command]);
    shell.current_dir(cwd).env_clear().envs(place.env()).envs(&command.env);
    shell.stdin(if command.stdin.is_piped() { Stdio::piped() } else { Stdio::null() });
    shell.stdout(Stdio::piped()).stderr(Stdio::piped());
    let set_up = move || {
        rustix::process::setsid()?;
        rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
        match &entrance {
            Some(entrance) => rustix::io::write(entrance, b"0").map(|_| ())?,
            None => set_child_subreaper(Some(getpid()))?,
        }
        Ok(())
    };
    // SAFETY: between fork and exec only plain system calls run; nothing allocates or takes a lock.
    unsafe { shell.pre_exec(set_up) };
    // Last: behind the fence, even the control group cannot be accessed.
    place.apply_fence(&mut shell);
    let mut child = shell.spawn()?;
    let adopted = adopt(&mut child).inspect_err(|_| {
        let _ = child.kill();
        let _ = child.wait();
    });
    adopted.map(|spawned| (Pid::from_child(&child), spawned))
}

fn adopt(child: &mut Child) -> io::Result<Spawned> {
    let missing = || io::Error::other("a pipe of the command is missing");
    Ok(Spawned {
        shell: Shell::adopt(Pid::from_child(child))?,
        stdin: child.stdin.take().map(|pipe| pipe::Sender::from_owned_fd(pipe.into())).transpose()?,
        stdout: pipe::Receiver::from_owned_fd(child.stdout.take().ok_or_else(missing)?.into())?,
        stderr: pipe::Receiver::from_owned_fd(child.stderr.take().ok_or_else(missing)?.into())?,
    })
}
