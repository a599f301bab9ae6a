//! Starts processes in a jail: user id, namespaces, root directory, cgroup, seccomp and rlimits.
//!
//! [`spawn`] starts this binary again as a *stage* (see [`stage`]), a single-threaded process that jails itself and
//! then executes the program. This crate does not depend on what the program is.

pub mod cgroup;
mod error;
pub mod oom_score_adj;
mod process_spec;
mod seccomp;
mod spawn;
pub mod stage;
mod stderr_pipe;
pub mod uid_pool;

pub use cgroup::{Cgroup, CgroupLimits, CgroupTree, MemoryHeadroom};
pub use error::Error;
pub use process_spec::{Confinement, Jail, ProcessSpec, ResourceLimits, Seclusion, Session};
pub use seccomp::{FilteredProcess, deny_system_calls};
pub use spawn::{Handles, Jailed, spawn};
pub use stderr_pipe::StderrPipe;
pub use uid_pool::{UidPool, UidRange};
