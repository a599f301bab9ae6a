//! Confines the server process: by Landlock to its own data, the roots, and what libraries read; by seccomp, which denies it system
//! calls that it does not need. It starts no processes: helpers do, which the keeper starts.
//!
//! Older kernels support fewer rules of Landlock. Before ABI 3 it does not restrict truncation by path, before ABI 5 not ioctls of
//! devices; there only the permissions of the uid apply. Before ABI 6 it restricts neither signals, for which the same holds, nor
//! connections to abstract sockets, which have no permissions.

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
use skep_jail::{FilteredProcess, deny_system_calls};
use skep_workspace::open_root;

/// The newest ABI that this program uses. An older kernel applies the rules that it supports.
const NEWEST: ABI = ABI::V6;

/// Devices that libraries open.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];

/// The paths that the process may access besides `/usr`, `/etc`, `/proc` and three devices.
#[derive(Debug, Clone, Default)]
pub struct AllowedPaths {
    /// Read and written: the server's part of the data directory, and the roots. Paths must be resolved; links are not
    /// followed.
    pub write: Vec<PathBuf>,
    /// Read only, folders and single files: templates, certificates.
    pub read: Vec<PathBuf>,
}

/// Which Landlock ABI is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rules {
    /// The newest that this kernel and this program support.
    #[default]
    Newest,
    /// ABI 2, that of Debian 12's kernel. For tests.
    Abi2,
}

/// How many of the rules of Landlock this kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    Full,
    /// The kernel does not support some of the rules.
    Partial,
    /// The kernel has no Landlock, or it is disabled.
    None,
}

/// Why the process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Landlock refused its rules")]
    Landlock(#[from] RulesetError),
    /// A required folder cannot be opened.
    #[error("{} cannot be opened for its Landlock rule; check that it exists and who owns it", path.display())]
    Path {
        path: PathBuf,
        #[source]
        source: PathFdError,
    },
    /// A root or the server's data folder cannot be opened.
    #[error("{} cannot be opened for its Landlock rule: {source}; check that it exists and who owns it", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// `PR_SET_DUMPABLE` failed.
    #[error("the process cannot be made undumpable")]
    Dumpable(#[source] io::Error),
    #[error("the kernel refuses a filter of system calls; it needs CONFIG_SECCOMP_FILTER")]
    SystemCalls(#[source] io::Error),
}

/// Confines this thread and the threads that it starts from now on. Must be called before any other thread exists.
///
/// # Errors
/// See [`Error`]. A kernel without Landlock is no error but [`Confinement::None`]; one without seccomp filters is.
pub fn confine(reach: &AllowedPaths, rules: Rules) -> Result<Confinement, Error> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| Error::Dumpable(error.into()))?;
    let abi = match rules {
        Rules::Newest => NEWEST,
        Rules::Abi2 => ABI::V2,
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?;
    if rules == Rules::Newest {
        ruleset = ruleset.scope(Scope::Signal)?.scope(Scope::AbstractUnixSocket)?;
    }
    let mut ruleset = ruleset.create()?;
    let read = AccessFs::from_read(abi) & !AccessFs::Execute;
    for path in &reach.write {
        let folder = open_root(path).map_err(|source| Error::Folder { path: path.clone(), source })?;
        let access = AccessFs::from_all(abi) & !AccessFs::Execute;
        ruleset = ruleset.add_rule(PathBeneath::new(folder, access))?;
    }
    for path in &reach.read {
        // The kernel refuses a rule with rights for directories on a file.
        let access = if path.is_file() { AccessFs::ReadFile.into() } else { read };
        ruleset = allow(ruleset, path, access, IfMissing::Skip)?;
    }
    ruleset = allow(ruleset, Path::new("/usr"), read, IfMissing::Fail)?;
    for path in ["/etc", "/proc"] {
        ruleset = allow(ruleset, Path::new(path), read, IfMissing::Skip)?;
    }
    for path in DEVICES {
        let access = AccessFs::ReadFile | AccessFs::WriteFile;
        ruleset = allow(ruleset, Path::new(path), access, IfMissing::Skip)?;
    }
    let status = ruleset.restrict_self()?;
    deny_system_calls(FilteredProcess::Server).map_err(Error::SystemCalls)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Confinement::Full,
        RulesetStatus::PartiallyEnforced => Confinement::Partial,
        RulesetStatus::NotEnforced => Confinement::None,
    })
}

/// Limits this thread, and what it starts from now on, to reading below these folders. This cannot be undone.
///
/// # Errors
/// Landlock refused the rules. A kernel without Landlock is no error.
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

/// The newest Landlock ABI that kernel and program both support; 0 where there is none.
pub fn landlock_abi() -> i32 {
    // The library reports the ABI only when a thread is confined, so a short-lived thread confines itself.
    let probe = || {
        let ruleset = Ruleset::default().handle_access(AccessFs::Execute)?.create()?;
        Ok::<_, RulesetError>(ruleset.restrict_self()?.landlock)
    };
    match std::thread::spawn(probe).join() {
        Ok(Ok(LandlockStatus::Available { effective_abi, .. })) => effective_abi as i32,
        _ => 0,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    Fail,
    Skip,
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    missing: IfMissing,
) -> Result<RulesetCreated, Error> {
    match PathFd::new(path) {
        Ok(folder) => Ok(ruleset.add_rule(PathBeneath::new(folder, access))?),
        Err(_) if missing == IfMissing::Skip => Ok(ruleset),
        Err(source) => Err(Error::Path { path: path.to_owned(), source }),
    }
}
