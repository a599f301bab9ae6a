//! Git operations on repositories below the roots of a workspace, done by the `git` program.
//!
//! ```text
//! path ── roots ──► repository, all parts below the roots ── its config ──► our overrides ──► program: git
//! ```
//! A repository may be hostile. [`repository`] finds it and checks every part of it; [`settings`] overrides or refuses
//! config that would start programs; [`remote`] parses remotes, and [`proxy`] checks the addresses that they resolve
//! to; [`program`] starts the git processes.

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
