//! What the server process may touch: its own data, the roots, and what programs need to run. Nothing else, whatever a
//! caller makes it do.
//!
//! Older kernels know fewer rules. Up to ABI 2 a file outside may be truncated by its path, and device ioctls, signals and
//! connections to sockets are not governed by any of the rules: there only the uid guards.

use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    PathFdError, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use skep_workspace::open_root;

/// The newest rules that we know. A kernel that knows fewer applies those.
const NEWEST: ABI = ABI::V6;

/// Devices that programs take for granted.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];

/// What the process may reach beside `/usr`, `/etc`, `/proc` and three devices.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Read and written: the server's part of the data directory, and the roots. Resolved paths: no link is followed.
    pub write: Vec<PathBuf>,
    /// Only read, folders and single files: templates, certificates.
    pub read: Vec<PathBuf>,
}

/// Which rules are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rules {
    /// All that this kernel and this program know.
    #[default]
    Newest,
    /// Those of ABI 2, which Debian 12's kernel has. For tests.
    Abi2,
}

/// How far the confinement goes on this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// All rules hold.
    Full,
    /// The kernel lacks some of them.
    Partial,
    /// The kernel has no Landlock, or it is switched off.
    None,
}

/// Why the process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Landlock refused a rule.
    #[error("Landlock refused its rules")]
    Landlock(#[from] RulesetError),
    /// A folder that must be reachable is not.
    #[error("{} cannot be opened for its Landlock rule; check that it exists and who owns it", path.display())]
    Path {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: PathFdError,
    },
    /// A root, or the server's own folder, cannot be opened.
    #[error("{} cannot be opened for its Landlock rule: {source}; check that it exists and who owns it", path.display())]
    Folder {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process could still be dumped.
    #[error("the process cannot be made undumpable")]
    Dumpable(#[source] io::Error),
}

/// Confines this thread and all that it starts from now on. To be called before any other thread exists.
///
/// # Errors
/// See [`Error`]. A kernel without Landlock is no error: the answer says so.
pub fn confine(reach: &Reach, rules: Rules) -> Result<Confinement, Error> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| Error::Dumpable(error.into()))?;
    let abi = match rules {
        Rules::Newest => NEWEST,
        Rules::Abi2 => ABI::V2,
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?;
    if rules == Rules::Newest {
        // Signals only: the service manager's socket may be an abstract one.
        ruleset = ruleset.scope(Scope::Signal)?;
    }
    let mut ruleset = ruleset.create()?;
    let read = AccessFs::from_read(abi) & !AccessFs::Execute;
    for path in &reach.write {
        let folder = open_root(path).map_err(|source| Error::Folder { path: path.clone(), source })?;
        let access = AccessFs::from_all(abi) & !AccessFs::Execute;
        ruleset = ruleset.add_rule(PathBeneath::new(folder, access))?;
    }
    for path in &reach.read {
        // A file is not listed: the kernel would not take the rule.
        let access = if path.is_file() { AccessFs::ReadFile.into() } else { read };
        ruleset = allow(ruleset, path, access, Missing::Passes)?;
    }
    ruleset = allow(ruleset, Path::new("/usr"), AccessFs::from_read(abi), Missing::Fails)?;
    for path in ["/etc", "/proc"] {
        ruleset = allow(ruleset, Path::new(path), read, Missing::Passes)?;
    }
    for path in DEVICES {
        let access = AccessFs::ReadFile | AccessFs::WriteFile;
        ruleset = allow(ruleset, Path::new(path), access, Missing::Passes)?;
    }
    let status = ruleset.restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Confinement::Full,
        RulesetStatus::PartiallyEnforced => Confinement::Partial,
        RulesetStatus::NotEnforced => Confinement::None,
    })
}

/// Limits this thread, and all that it starts from now on, to reading below these folders. It never gets more again.
///
/// # Errors
/// Landlock refused. A kernel without Landlock is no error.
pub fn fence(folders: &[BorrowedFd<'_>]) -> io::Result<()> {
    let rules = || {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let mut ruleset = ruleset.handle_access(AccessFs::from_all(NEWEST))?.create()?;
        let access = AccessFs::from_read(NEWEST) & !AccessFs::Execute;
        for folder in folders {
            ruleset = ruleset.add_rule(PathBeneath::new(folder, access))?;
        }
        ruleset.restrict_self()
    };
    rules().map(drop).map_err(|error: RulesetError| io::Error::other(error))
}

/// The version of Landlock that kernel and program both know; 0 where there is none.
pub fn landlock_abi() -> i32 {
    // The library tells it to who is confined. A thread of its own, which ends with the asking, is.
    let ask = || {
        let ruleset = Ruleset::default().handle_access(AccessFs::Execute)?.create()?;
        Ok::<_, RulesetError>(ruleset.restrict_self()?.landlock)
    };
    match std::thread::spawn(ask).join() {
        Ok(Ok(LandlockStatus::Available { effective_abi, .. })) => effective_abi as i32,
        _ => 0,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Fails,
    Passes,
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    missing: Missing,
) -> Result<RulesetCreated, Error> {
    match PathFd::new(path) {
        Ok(folder) => Ok(ruleset.add_rule(PathBeneath::new(folder, access))?),
        Err(_) if missing == Missing::Passes => Ok(ruleset),
        Err(source) => Err(Error::Path { path: path.to_owned(), source }),
    }
}
