//! Starts processes in a jail: user id, namespaces, root directory, cgroup, seccomp and rlimits.
//!
//! [`spawn`] starts this binary again as a *stage* (see [`stage`]), a single-threaded process that jails itself and
//! then executes the program. This crate does not depend on what the program is.

pub mod cgroup;
mod error;
mod order;
mod seccomp;
mod spawn;
pub mod stage;
pub mod uids;
mod words;

pub use cgroup::{Cgroup, CgroupLimits, Tree};
pub use error::Error;
pub use order::{Confinement, Jail, Order, ResourceLimits, Seclusion};
pub use spawn::{Handles, Jailed, spawn};
pub use uids::{UidPool, UidRange};
pub use words::Words;
