//! The counterpart of the guest agent on the server's machine: processes that start programs, one for commands and one
//! for git.
//!
//! ```text
//! server ── HTTP/2 over a socket pair ──► helper ── fork, fence, exec ──► programs of callers
//! ```
//! The helper speaks the protocol of the agent in a VM and runs the same operations. Unlike the agent, one helper
//! serves all accounts: each request carries the roots of its account, and each program enters a fence around these
//! roots before it runs.

mod error;
mod fences;
mod git_fence;
mod handler;

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};

use rustix::process::{DumpableBehavior, Pid, getpid, set_child_subreaper, set_dumpable_behavior};
use skep_api::HelperKind;
use skep_workspace::{Fence, Place, git::GitGrants, kill_descendants};
use tokio::net::UnixStream;

pub use error::Error;
use git_fence::GitFences;
use handler::Helper;

/// Git's own children are awaited within this time also on a loaded machine.
const ORPHAN_DELAY: Duration = Duration::from_millis(250);

/// The configuration of a helper.
#[derive(Debug, Clone)]
pub struct HelperOrder {
    /// What the helper starts. The helper for git executes no file below the roots or in `scratch`.
    pub kind: HelperKind,
    /// Folders that contain the roots of all accounts. A program can access only the roots of its account within them.
    pub roots: Vec<PathBuf>,
    /// Further folders that programs may write, such as a private `/tmp`.
    pub scratch: Vec<PathBuf>,
    /// The environment of all programs; `HOME` is added for each account.
    pub env: BTreeMap<String, String>,
    /// The parent of a control group for each command; `None` if control groups cannot be created.
    pub groups: Option<PathBuf>,
    /// What git may access in addition.
    pub git: GitGrants,
}

/// Confines this process permanently. Must be called while it has a single thread.
///
/// # Errors
/// [`Error`]. A kernel without Landlock is not an error; only the file permissions of the user protect in this case.
pub fn confine(order: &HelperOrder) -> Result<(), Error> {
    // Programs run as the same user and must not read the memory of this process.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(Error::io("make the process non-dumpable"))?;
    // Orphans become children of this process. If it is the init process of a PID namespace, they end with it.
    set_child_subreaper(Some(getpid())).map_err(Error::io("become a subreaper"))?;
    let write = order.scratch.iter().chain(&order.groups).cloned().collect();
    let (roots, execute, read) =
        (order.roots.clone(), may_execute_written_files(order), readable_paths(order));
    fences::confine(&fences::FileAccess { roots, write, execute, read, processes: true })
}

/// Serves the server until it disconnects.
///
/// # Errors
/// The socket fails, or the signal handler cannot be installed.
pub async fn serve(stream: UnixStream, order: HelperOrder) -> io::Result<()> {
    let helper = Helper::new(order)?;
    skep_host::reap_orphans(helper.commands(), ORPHAN_DELAY)?;
    match skep_channel::guest::serve(stream, helper).await {
        // A server that ends before it has read all that was sent to it disconnects in this way.
        Err(error) if disconnected(&error) => Ok(()),
        served => served,
    }
}

fn disconnected(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Kills all programs that this process has started, before it exits. [`serve`] does not do it: several helpers may
/// share one process.
pub fn kill_programs() {
    // The kernel does it where this is the init process of a PID namespace.
    if getpid() != Pid::INIT {
        kill_descendants();
    }
}

/// Further paths that all programs may read.
fn readable_paths(order: &HelperOrder) -> Vec<PathBuf> {
    order.git.ca_file.iter().cloned().collect()
}

/// Whether programs may execute files in folders that they may write.
fn may_execute_written_files(order: &HelperOrder) -> bool {
    order.kind == HelperKind::Commands
}

impl HelperOrder {
    /// The scratch folders of programs, and the private folder: the last one of a helper for git.
    fn split_scratch(&self) -> (&[PathBuf], Option<&PathBuf>) {
        match (self.kind, self.scratch.split_last()) {
            (HelperKind::Git, Some((private, others))) => (others, Some(private)),
            _ => (&self.scratch, None),
        }
    }
}

/// The fence of an account's programs and, if there is a private folder, the fence of a git that may access it as well.
fn account_fences(order: &HelperOrder, roots: Vec<PathBuf>) -> Result<(Fence, Option<Fence>), Error> {
    let (write, private) = order.split_scratch();
    let (execute, read) = (may_execute_written_files(order), readable_paths(order));
    let access = fences::FileAccess { roots, write: write.to_vec(), execute, read, processes: true };
    let fence = fences::fence(&access)?;
    // The environment of such a git names its git directory, and a link of the repository to `/proc/self/environ` would make the git
    // print it.
    let (write, processes) = (order.scratch.clone(), false);
    let with_private = private.map(|_| fences::FileAccess { write, processes, ..access });
    Ok((fence, with_private.as_ref().map(fences::fence).transpose()?))
}

/// The workspace that those of the accounts are derived from.
fn place(order: &HelperOrder) -> io::Result<Place> {
    let place = Place::new("/", "/", order.env.clone(), order.groups.clone().unwrap_or_default());
    let place = match order.kind {
        HelperKind::Commands => place,
        HelperKind::Git => {
            let fences = GitFences::for_installed_git(!order.git.filters.is_empty())?;
            let place = place.with_git_grants(order.git.clone()).with_git_fence(Arc::new(fences));
            match order.split_scratch().1 {
                Some(folder) => place.with_private_folder(folder),
                None => place,
            }
        }
    };
    Ok(if order.groups.is_some() { place } else { place.without_groups() })
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        process::{Command, Stdio},
    };

    use skep_channel::marker::{Marker, NONCE_BYTES};
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn order_for_commands() -> HelperOrder {
        let (roots, scratch, groups, git) = (Vec::new(), Vec::new(), None, GitGrants::default());
        HelperOrder { kind: HelperKind::Commands, roots, scratch, env: BTreeMap::new(), groups, git }
    }

    #[test]
    fn only_the_fence_of_a_git_that_needs_it_contains_the_private_folder() {
        let [root, temporary, private] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        let scratch = vec![temporary.path().to_owned(), private.path().to_owned()];
        let order = HelperOrder { kind: HelperKind::Git, scratch, ..order_for_commands() };
        let (fence, private_fence) = account_fences(&order, vec![root.path().to_owned()]).unwrap();
        let private_fence = private_fence.unwrap();
        let succeeds = |fence: &Fence, program: &str, path: &Path| {
            let mut command = Command::new(program);
            fence.apply_to(&mut command);
            command.arg(path).output().unwrap().status.success()
        };
        for folder in [&root, &temporary] {
            assert!(succeeds(&fence, "ls", folder.path()) && succeeds(&private_fence, "ls", folder.path()));
        }
        assert!(!succeeds(&fence, "ls", private.path()));
        assert!(succeeds(&private_fence, "ls", private.path()), "the control");
        // A git with access to it cannot read its own environment, which names its git directory.
        let environment = Path::new("/proc/self/environ");
        assert!(!succeeds(&private_fence, "cat", environment));
        assert!(succeeds(&fence, "cat", environment), "the control");
        let commands = HelperOrder { kind: HelperKind::Commands, ..order };
        assert!(account_fences(&commands, vec![root.path().to_owned()]).unwrap().1.is_none());
    }

    /// A root may be replaced by a link after it was checked.
    #[test]
    fn a_root_that_is_a_link_has_no_fence() {
        let folder = tempfile::tempdir().unwrap();
        let [root, link] = ["root", "link"].map(|name| folder.path().join(name));
        std::fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(&root, &link).unwrap();
        let error = account_fences(&order_for_commands(), vec![link.clone()]).unwrap_err();
        assert!(error.to_string().contains(link.to_str().unwrap()), "{error}");
        account_fences(&order_for_commands(), vec![root]).unwrap();
    }

    #[tokio::test]
    async fn the_end_of_one_helper_kills_no_other_program_of_the_process() {
        let mut program = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (server, helper) = UnixStream::pair().unwrap();
        drop(server);
        serve(helper, order_for_commands()).await.unwrap();
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success(), "it ends by itself");
    }

    /// The kernel resets such a connection instead of ending it.
    #[tokio::test]
    async fn a_server_that_ends_with_an_unread_answer_is_no_error() {
        let (mut server, helper) = UnixStream::pair().unwrap();
        let serving = tokio::spawn(serve(helper, order_for_commands()));
        server.write_all(&Marker::new([7; NONCE_BYTES]).to_bytes()).await.unwrap();
        server.readable().await.unwrap();
        drop(server);
        serving.await.unwrap().unwrap();
    }
}
