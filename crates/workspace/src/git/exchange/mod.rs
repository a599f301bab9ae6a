//! Pushes, pulls and clones of repositories in VMs, split into steps that run in different workspaces.
//!
//! ```text
//!         in the VM                      on the server
//! push    plan ─► pack ──── pack ──────► temporary repository ── git push ──► remote
//!         note ◄──────────── result of the push
//! pull    plan ────── known commits ───► temporary repository ◄─ git fetch ── remote
//!         join ◄─────────── pack
//! clone   import ◄───────── pack and refs ──────────── export: of a VM, of the workspace, or of a remote
//! ```
//! A remote in another workspace of the same server (`skep://`) is contacted there: the steps on the right then run in that
//! workspace, where the remote is a path.
//!
//! The plan of a shallow repository contains its boundary, which the temporary repository adopts; commits below it are in
//! neither pack. Only the server uses credentials. It checks input from the VM like that of any caller.

mod boundary;
mod clone_here;
mod export;
mod fetch;
mod import;
mod import_fetched;
mod join;
mod pack;
mod plan;
mod send;
mod temporary;
#[cfg(test)]
mod tests;
mod unfinished_clone;

pub(super) use self::{clone_here::clone_here, unfinished_clone::UnfinishedClone};
use super::{
    GitError,
    remote::{Remote, redacted},
    repository::is_hash,
};
use crate::Error;

/// Parses the remote of a VM's repository for use by the server. A path in the VM is refused.
fn parse_network_remote(url: &str) -> Result<Remote, Error> {
    match Remote::parse(url)? {
        Remote::Local(_) | Remote::Relayed(_) => {
            let why = "is a path, which has another meaning on the server".to_owned();
            Err(GitError::RemoteForbidden { remote: redacted(url), why }.into())
        }
        remote => Ok(remote),
    }
}

/// Refuses text that is not the hash of a commit.
fn check_hash(hash: &str) -> Result<(), Error> {
    if is_hash(hash) {
        return Ok(());
    }
    Err(Error::InvalidValue { field: "commit", reason: "is no hash of a commit".to_owned() })
}
