//! The guest agent of the server's own machine: processes that start programs, one for commands and one for git.
//!
//! ```text
//! server ── HTTP/2 over a socket pair ──► helper ── fork, fence, exec ──► programs of callers
//! ```
//! It speaks the protocol of the agent in a VM and runs the same operations. What differs: one helper serves all accounts,
//! so each call says on whose ground it is done, and each program enters a fence around that ground before it runs.

mod error;
mod fences;
mod git_fence;
mod handler;
mod reaper;

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use rustix::process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior};
use skep_api::HelperKind;
use skep_workspace::{Place, git::GitGrants};
use tokio::net::UnixStream;

pub use error::Error;
use git_fence::GitFences;
use handler::Helper;

/// What a helper is started with.
#[derive(Debug, Clone)]
pub struct HelperOrder {
    /// What it starts. In the helper of git no file below the roots or in `scratch` is executed.
    pub kind: HelperKind,
    /// Folders of which the accounts' roots are parts. No program reaches anything of them but its account's roots.
    pub roots: Vec<PathBuf>,
    /// What programs may write besides: folders that are theirs alone, such as a `/tmp` of their own.
    pub scratch: Vec<PathBuf>,
    /// What every program sees; each account's `HOME` is added.
    pub env: BTreeMap<String, String>,
    /// Where a control group for each command may be made; `None` where nobody may.
    pub groups: Option<PathBuf>,
    /// What git may use besides.
    pub git: GitGrants,
}

/// Confines this process, for good. To be called before any other thread exists.
///
/// # Errors
/// [`Error`]. A kernel without Landlock is no error: only the user guards there.
pub fn confine(order: &HelperOrder) -> Result<(), Error> {
    // Programs run as our user: none shall look into us.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(Error::io("become undumpable"))?;
    // Orphans come to us and to nobody else, so they end with us where we are the first process of a namespace.
    set_child_subreaper(Some(getpid())).map_err(Error::io("become the one that inherits orphans"))?;
    let write = order.scratch.iter().chain(&order.groups).cloned().collect();
    let (roots, execute, read) = (order.roots.clone(), executes(order), readable(order));
    fences::confine(&fences::Reach { roots, write, execute, read })
}

/// Serves the server until it hangs up.
///
/// # Errors
/// The socket does not work, or a signal cannot be listened for.
pub async fn serve(stream: UnixStream, order: HelperOrder) -> io::Result<()> {
    let helper = Helper::new(order)?;
    reaper::start(helper.commands())?;
    skep_channel::guest::serve(stream, helper).await
}

/// What every program may read besides.
fn readable(order: &HelperOrder) -> Vec<PathBuf> {
    order.git.authorities.iter().cloned().collect()
}

/// Whether programs may execute files that they may write.
fn executes(order: &HelperOrder) -> bool {
    order.kind == HelperKind::Commands
}

/// The place that the accounts' places are made of.
fn place(order: &HelperOrder) -> io::Result<Place> {
    let place = Place::new("/", "/", order.env.clone(), order.groups.clone().unwrap_or_default());
    let place = match order.kind {
        HelperKind::Commands => place,
        HelperKind::Git => {
            let fences = GitFences::of_this_machine(!order.git.filters.is_empty())?;
            place.with_git(order.git.clone()).with_git_fence(Arc::new(fences))
        }
    };
    Ok(if order.groups.is_some() { place } else { place.without_groups() })
}
