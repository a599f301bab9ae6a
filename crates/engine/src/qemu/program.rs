//! The program that VMMs execute, and its version. An update of its package may replace the file while skep runs.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use super::PROGRAM;
use crate::{Error, upstream_version};

/// The program, with the version that it had when it was found. Templates are baked and found by that version.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    version: String,
    installed: Mutex<Installed>,
}

/// The version of the file that was last probed.
#[derive(Debug)]
struct Installed {
    file: FileState,
    version: String,
}

/// Differs if the file was replaced or written. The kernel sets the time of change, so a file that was unpacked with the times
/// of another one differs too.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Program {
    /// Determines the version of the program.
    ///
    /// # Errors
    /// It is missing, or does not run.
    pub(super) fn find(path: PathBuf) -> Result<Self, Error> {
        let installed = Installed::probe(&path)?;
        Ok(Self { path, version: installed.version.clone(), installed: Mutex::new(installed) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The version that was found, with the distribution's revision.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Checks that the file has still the upstream version that was found. Reads the state of the file, and runs it only if that
    /// has changed.
    ///
    /// # Errors
    /// It was replaced by another version, or is missing.
    pub(super) fn check_version(&self) -> Result<(), Error> {
        let file = FileState::of(&self.path)?;
        let mut installed = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        if installed.file != file {
            *installed = Installed::probe(&self.path)?;
        }
        let name = |version: &str| format!("qemu {}", upstream_version(version));
        let (was, is) = (name(&self.version), name(&installed.version));
        if was == is { Ok(()) } else { Err(Error::VersionChanged { was, is }) }
    }

    /// A program that is not executed.
    #[cfg(test)]
    pub(super) fn not_probed(path: &str, version: &str) -> Self {
        let (path, version) = (PathBuf::from(path), version.to_owned());
        let installed = Installed { file: FileState::of(&path).unwrap(), version: version.clone() };
        Self { path, version, installed: Mutex::new(installed) }
    }
}

impl Installed {
    fn probe(path: &Path) -> Result<Self, Error> {
        // Before the version: if the file is replaced in between, the next check finds another state and probes again.
        let file = FileState::of(path)?;
        let output = Command::new(path).arg("--version").output().map_err(|error| unusable(path, &error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version =
            version_in(&text).ok_or_else(|| missing(format!("`--version` says `{}`", text.trim())))?;
        Ok(Self { file, version: version.to_owned() })
    }
}

impl FileState {
    fn of(path: &Path) -> Result<Self, Error> {
        let found = fs::metadata(path).map_err(|error| unusable(path, &error))?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    missing(format!("{}: {error}", path.display()))
}

fn missing(reason: String) -> Error {
    Error::Missing { program: PROGRAM, reason, package: "qemu-system-x86" }
}

/// The version with the distribution's revision, for diagnosis.
fn version_in(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("QEMU emulator version ").map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a program that prints this version in the place of another one, as a package manager does. Another process writes
    /// it: a file cannot be executed while a process that another test starts still has a descriptor for its writing.
    fn install(path: &Path, version: &str) {
        let script = r##"printf "%s\n" "#!/bin/sh" "echo 'QEMU emulator version $2'" > "$1.new"
chmod 755 "$1.new"
mv "$1.new" "$1""##;
        let status = Command::new("sh").args(["-euc", script, "sh"]).arg(path).arg(version).status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn the_version_contains_the_distributions_revision() {
        let output = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c)";
        assert_eq!(version_in(output), Some("7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"));
        assert_eq!(version_in("something else"), None);
    }

    #[test]
    fn a_program_that_was_replaced_is_used_only_if_it_is_of_the_same_upstream_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qemu");
        install(&path, "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b2)");
        let program = Program::find(path.clone()).unwrap();
        assert_eq!(program.version(), "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b2)");
        program.check_version().unwrap();

        install(&path, "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)");
        program.check_version().unwrap();

        install(&path, "10.0.2 (Debian 1:10.0.2+ds-2)");
        // Also at the second check, which does not run it again.
        for _ in 0..2 {
            let refused = program.check_version().unwrap_err();
            assert!(matches!(refused, Error::VersionChanged { .. }), "{refused}");
            let text = refused.to_string();
            for part in ["qemu 7.2.22", "qemu 10.0.2", "systemctl restart skep"] {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(!text.contains("Debian"), "{text}");
        }

        install(&path, "7.2.22");
        program.check_version().unwrap();

        fs::remove_file(&path).unwrap();
        let refused = program.check_version().unwrap_err();
        assert!(matches!(refused, Error::Missing { .. }), "{refused}");
    }
}
