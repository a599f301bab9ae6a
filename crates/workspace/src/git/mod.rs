//! Git: repositories below the roots of a place, by `git` itself.
//!
//! ```text
//! path ── roots ──► where the repository lies, whole ── its settings ──► ours over them ──► program: git
//! ```
//! A repository may be hostile. [`repository`] finds it and looks at all that it consists of; [`settings`] overrules or
//! refuses what would start programs; [`remote`] says which remotes there are, and [`proxy`] at which addresses;
//! [`program`] is the one place that starts a process.

mod address;
mod branch;
mod callback;
mod changes;
mod checkout;
mod cloning;
mod commit;
mod credentials;
mod diff;
mod exchange;
mod filters;
mod large_files;
mod lies;
mod lock;
mod log;
mod make;
mod merge;
mod plain;
mod program;
mod proxy;
mod pull;
mod push;
mod refused;
mod remote;
mod remotes;
mod repository;
mod settings;
mod show;
mod stage;
mod stash;
mod status;
mod tags;
#[cfg(test)]
mod tests;
mod upstream;
mod way;
mod worktree;

pub use address::Allowed;
pub use callback::answer_git;
pub use filters::{GitFilter, GitGrants};
pub use program::{PATH, Reach};
pub use refused::Refused;
