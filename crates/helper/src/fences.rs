//! Landlock rules: one set for the helper itself, and a narrower one for the programs of each account.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};
use skep_workspace::{Fence, open_root};

use crate::Error;

/// The newest supported ABI of Landlock. Older kernels apply the subset that they support.
const NEWEST: ABI = ABI::V6;
/// Programs, libraries and their configuration, which may be read and executed. Missing paths are skipped.
pub(crate) const PROGRAMS: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/etc", "/nix/store"];
/// May be read only: DNS configuration and CPU information.
const READ_ONLY: [&str; 2] = ["/run/systemd/resolve", "/sys/devices/system/cpu"];
/// The program of this process, which git starts as well.
pub(crate) const SELF_EXE: &str = "/proc/self/exe";
/// Devices that most programs need.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];
/// Information on processes. Writable for the helper only, so that it can set the OOM score of programs.
const PROC: &str = "/proc";

/// The files that may be accessed in addition to those of the system.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileAccess {
    /// Folders that may be read and written. Resolved paths: no link is followed.
    pub(crate) roots: Vec<PathBuf>,
    /// Further folders that may be read and written.
    pub(crate) write: Vec<PathBuf>,
    /// Whether files in writable folders may be executed.
    pub(crate) execute: bool,
    /// Paths that may be read only. Missing ones are skipped.
    pub(crate) read: Vec<PathBuf>,
    /// Whether information on processes may be read, such as their environment variables.
    pub(crate) processes: bool,
}

/// Confines this thread and all processes it starts.
pub(crate) fn confine(access: &FileAccess) -> Result<(), Error> {
    // Signals cannot leave this domain: without a PID namespace, the server's processes belong to the same user.
    let rules = base_ruleset()?.scope(Scope::Signal)?.create()?;
    let rules =
        allow(rules, Path::new(PROC), AccessFs::from_read(NEWEST) | AccessFs::WriteFile, IfMissing::Skip)?;
    add_rules(rules, access)?.restrict_self()?;
    Ok(())
}

/// The fence for programs with this access.
pub(crate) fn fence(access: &FileAccess) -> Result<Fence, Error> {
    Ok(Fence::new(add_rules(base_ruleset()?.create()?, access)?.into()))
}

fn base_ruleset() -> Result<Ruleset, Error> {
    Ok(Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?)
}

fn add_rules(mut rules: RulesetCreated, access: &FileAccess) -> Result<RulesetCreated, Error> {
    let all = AccessFs::from_all(NEWEST);
    let write_access = if access.execute { all } else { all & !AccessFs::Execute };
    for path in &access.roots {
        let folder = open_root(path).map_err(|source| Error::Root { path: path.clone(), source })?;
        rules = rules.add_rule(PathBeneath::new(folder, write_access))?;
    }
    for path in &access.write {
        rules = allow(rules, path, write_access, IfMissing::Fail)?;
    }
    for path in PROGRAMS {
        rules = allow(rules, Path::new(path), AccessFs::from_read(NEWEST), IfMissing::Skip)?;
    }
    let read = AccessFs::from_read(NEWEST) & !AccessFs::Execute;
    for path in READ_ONLY.map(Path::new).into_iter().chain(access.read.iter().map(PathBuf::as_path)) {
        rules = allow(rules, path, read, IfMissing::Skip)?;
    }
    if access.processes {
        rules = allow(rules, Path::new(PROC), read, IfMissing::Skip)?;
    }
    rules = allow(rules, Path::new(SELF_EXE), AccessFs::Execute | AccessFs::ReadFile, IfMissing::Skip)?;
    for path in DEVICES {
        let access = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        rules = allow(rules, Path::new(path), access, IfMissing::Skip)?;
    }
    Ok(rules)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    Fail,
    Skip,
}

fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    missing: IfMissing,
) -> Result<RulesetCreated, Error> {
    match PathFd::new(path) {
        Ok(folder) => Ok(rules.add_rule(PathBeneath::new(folder, access))?),
        Err(_) if missing == IfMissing::Skip => Ok(rules),
        Err(source) => Err(Error::Path { path: path.to_owned(), source }),
    }
}
