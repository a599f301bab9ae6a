//! The programs that a bake runs: each with its words kept for the error, each named with its package where missing.

use std::{
    ffi::OsStr,
    io,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::Error;

/// How much of a program's last words an error repeats.
const WORDS_BYTES: usize = 600;

/// A program and the Debian package that has it.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

impl Program {
    /// Runs it in `dir` and gives its standard output.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, dir: &Path, arguments: &[A]) -> Result<String, Error> {
        let output = Command::new(self.name)
            .args(arguments)
            .current_dir(dir)
            .stdin(Stdio::null())
            .env("LC_ALL", "C.UTF-8")
            .output()
            .map_err(|error| self.not_started(error))?;
        if !output.status.success() {
            return Err(self.failed(arguments, &output));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn not_started(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::NotFound {
            return Error::Missing { program: self.name.to_owned(), package: self.package };
        }
        Error::io(self.name)(error)
    }

    fn failed<A: AsRef<OsStr>>(&self, arguments: &[A], output: &Output) -> Error {
        let first =
            arguments.first().map(|word| word.as_ref().to_string_lossy().into_owned()).unwrap_or_default();
        let words = String::from_utf8_lossy(&output.stderr);
        let words = words.trim();
        let from = words.char_indices().rev().take(WORDS_BYTES).last().map_or(0, |(at, _)| at);
        Error::Failed {
            command: format!("{} {first} ...", self.name),
            status: output.status.to_string(),
            words: words[from..].to_owned(),
        }
    }
}
