//! Pushes and pulls of a VM's repository, each in parts that are done in two places.
//!
//! ```text
//!         in the VM                      on the server
//! push    plan ─► pack ──── pack ──────► a repository for a moment ── git push ──► remote
//!         note ◄──────────── what came of it
//! pull    plan ──────── what is known ─► a repository for a moment ◄─ git fetch ── remote
//!         join ◄─────────── pack
//! clone   import ◄───────── pack and refs ──────────── export: in a VM, in the workspace, or of a remote
//! ```
//! A remote in another place of the same server (`skep://`) is spoken to there: what stands on the right is then done in that
//! place, where the remote is a path.
//!
//! A shallow repository tells where its history begins, and so does the one for a moment: what is below is in neither pack.
//! Tokens are used on the server alone. What the VM says is looked at there as if a caller had said it.

mod boundary;
mod brief;
mod export;
mod fetch;
mod import;
mod join;
mod pack;
mod plan;
mod send;
mod take;
#[cfg(test)]
mod tests;

use super::{
    Refused,
    remote::{Remote, shown},
    repository::is_hash,
};
use crate::Error;

/// The remote of a VM's repository, as the server may go there. A path in the VM is none here.
fn elsewhere(url: &str) -> Result<Remote, Error> {
    match Remote::parse(url)? {
        Remote::Local(_) | Remote::Relayed(_) => {
            let why = "is a path, which means another thing on the server".to_owned();
            Err(Refused::RemoteForbidden { remote: shown(url), why }.into())
        }
        remote => Ok(remote),
    }
}

/// Refuses what no commit's hash is.
fn check_hash(hash: &str) -> Result<(), Error> {
    if is_hash(hash) {
        return Ok(());
    }
    Err(Error::InvalidValue { field: "commit", reason: "is no hash of a commit".to_owned() })
}
