//! The confinement of the process, in addition to its user, namespaces and control group.

use std::io;

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// The newest supported ABI of Landlock. Older kernels apply the subset that they support.
const NEWEST: ABI = ABI::V6;

/// Confines this process permanently: it opens no file, signals no other process, and makes no system call that only
/// an attacker needs. Must be called while it has a single thread, after everything is read.
///
/// # Errors
/// The kernel refuses a step. A kernel without Landlock is not an error.
pub fn confine() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // A connection takes two descriptors, and there are thousands.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let rules = || {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .scope(Scope::Signal)?
            .scope(Scope::AbstractUnixSocket)?;
        ruleset.create()?.restrict_self()
    };
    rules().map_err(io::Error::other)?;
    skep_jail::deny_system_calls(skep_jail::Sockets::UnixAndInternet)
}
