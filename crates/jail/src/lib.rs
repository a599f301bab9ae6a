//! Uid, namespaces, root, cgroup, seccomp and rlimits of one jailed process.
//!
//! [`spawn`] starts our own binary as a *stage* (see [`stage`]), a process with one thread and nothing to lose, which
//! jails itself and then becomes the program. Nothing here knows what the program is.

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
