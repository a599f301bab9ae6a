//! Runs the external programs of a bake. Errors contain the program's output, or the package to install if it is
//! missing.

use std::{
    ffi::OsStr,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};
use skep_jail::Cgroup;

use crate::Error;

/// Maximum length, in characters, of a program's standard error in an error.
const MAX_STDERR_CHARS: usize = 600;

/// A program and the Debian package that contains it.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

impl Program {
    /// Runs the program in `dir` and returns its standard output. Only for queries; programs that write files run in a
    /// [`Containment`].
    pub(crate) fn run<A: AsRef<OsStr>>(&self, dir: &Path, arguments: &[A]) -> Result<String, Error> {
        self.outcome(self.command(dir, arguments), arguments)
    }

    fn command<A: AsRef<OsStr>>(&self, dir: &Path, arguments: &[A]) -> Command {
        let mut command = Command::new(self.name);
        command.args(arguments).current_dir(dir).stdin(Stdio::null());
        // What is parsed must not be translated, and LANGUAGE is stronger than this locale.
        command.env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
        command
    }

    fn outcome<A: AsRef<OsStr>>(&self, mut command: Command, arguments: &[A]) -> Result<String, Error> {
        let output = command.output().map_err(|error| self.not_started(error))?;
        if !output.status.success() {
            return Err(self.failed(arguments, &output));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The error for a program that could not be started.
    pub(crate) fn not_started(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::NotFound {
            return Error::Missing { program: self.name.to_owned(), package: self.package };
        }
        Error::io(self.name)(error)
    }

    fn failed<A: AsRef<OsStr>>(&self, arguments: &[A], output: &Output) -> Error {
        let first =
            arguments.first().map(|first| first.as_ref().to_string_lossy().into_owned()).unwrap_or_default();
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim();
        let from = message.char_indices().rev().take(MAX_STDERR_CHARS).last().map_or(0, |(at, _)| at);
        Error::Failed {
            command: format!("{} {first} ...", self.name),
            status: output.status.to_string(),
            message: message[from..].to_owned(),
        }
    }
}

/// Contains the programs of a bake: in a control group, so that they can be ended even after the bake was killed, and
/// each in a mount namespace of its own, so that its mounts end with it.
#[derive(Debug)]
pub(crate) struct Containment(pub(crate) Cgroup);

impl Containment {
    /// Runs a program in `dir` and returns its standard output.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        program: &Program,
        dir: &Path,
        arguments: &[A],
    ) -> Result<String, Error> {
        let mut command = program.command(dir, arguments);
        self.admit(&mut command)?;
        program.outcome(command, arguments)
    }

    /// Prepares a command so that its process starts in the control group and a new mount namespace.
    pub(crate) fn admit(&self, command: &mut Command) -> Result<(), Error> {
        let doors = self.0.open_procs_files().map_err(|error| Error::Jail(error.to_string()))?;
        let enter = move || {
            for door in &doors {
                // `0` moves the calling process.
                rustix::io::write(door, b"0")?;
            }
            // SAFETY: no CLONE_FILES among the flags: the descriptor table stays the one that `OwnedFd` knows.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
            match mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC) {
                // `/` is not a mount point if this process runs in a chroot.
                Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        // SAFETY: between fork and exec it makes system calls only: no memory is allocated, no lock is taken.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parsed_is_not_translated() {
        let command = Program { name: "apt-cache", package: "apt" }.command(Path::new("/"), &["policy"]);
        let variables: Vec<_> = command.get_envs().collect();
        // With LANGUAGE, `Candidate:` is `Installationskandidat:` for German callers, although the locale is `C.UTF-8`.
        assert!(variables.contains(&(OsStr::new("LANGUAGE"), None)), "{variables:?}");
        assert!(variables.contains(&(OsStr::new("LC_ALL"), Some(OsStr::new("C.UTF-8")))), "{variables:?}");
    }
}
