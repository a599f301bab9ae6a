//! Git operations on repositories below the roots of a workspace, done by the `git` program.
//!
//! ```text
//! path ── roots ──► repository, all parts below the roots ── its config ──► our overrides ──► program: git
//! ```
//! A repository may be hostile. [`repository`] finds it and checks every part of it; [`config`] overrides or refuses
//! config that would start programs; [`remote`] parses remotes, and [`skep_egress`] checks the addresses that they
//! resolve to; [`program`] starts the git processes.

mod branch;
mod callback;
mod checkout;
mod clone_source;
mod commit;
mod config;
mod create;
mod credentials;
mod diff;
mod error;
mod exchange;
mod filters;
mod hosts;
mod large_files;
mod locate;
mod lock;
mod log;
mod merge;
mod network_dir;
mod program;
mod pull;
mod push;
mod raw_diff;
mod read_permits;
mod remote;
mod remotes;
mod repository;
mod shared_by_key;
mod show;
mod ssh_agent;
mod stage;
mod stash;
mod status;
mod tags;
mod temporary_folder;
#[cfg(test)]
mod tests;
mod transport;
mod upstream;
mod worktree;

pub use callback::serve_git_callback;
pub use error::GitError;
pub use filters::{GitFilter, GitGrants};
pub use hosts::remote_host;
pub use program::{NetworkAccess, PATH};
