//! Helpers: the processes that start programs for callers. Each server has one of each kind, and a new one if it died.
//!
//! Each helper is the init process of a PID namespace and has a cgroup of its own, in which it creates a group per
//! command but cannot change its limits. When it ends, the kernel kills everything that it started. Without root it has
//! neither, and kills its programs itself when its stream closes.

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use skep_api::HelperKind;
use skep_jail::{
    Cgroup, CgroupLimits, CgroupTree, Confinement, Handles, Jailed, ProcessSpec, Seclusion, Session,
    oom_score_adj, stage::SELF_EXE,
};

use crate::{DataDir, Error, HelperConfig, User, cleanup, privileges::has_root};

/// Helpers of one kind per server. Usually one; a second one if the stream of the first broke before it ended.
const MAX_HELPERS_PER_KIND: usize = 4;
/// How long a helper without a PID namespace may take to kill its programs, once its stream is closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// A killed process usually exits within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of a server process, unique within one keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerId(pub(crate) u64);

pub(crate) struct Helpers {
    binary: PathBuf,
    user: User,
    data_dir: DataDir,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Created with the first helper. `Some(None)` if cgroups are not available.
    tree: Option<Option<CgroupTree>>,
    started: u64,
    living: Vec<RunningHelper>,
}

struct RunningHelper {
    server: ServerId,
    kind: HelperKind,
    process: Jailed,
    group: Option<Cgroup>,
}

impl Helpers {
    pub(crate) fn new(binary: PathBuf, user: User, data_dir: DataDir) -> Self {
        Self { binary, user, data_dir, state: Mutex::default() }
    }

    /// Starts a helper and returns the server's end of its stream. Blocks for some milliseconds.
    pub(crate) fn start(
        &self,
        server: ServerId,
        kind: HelperKind,
        order: &HelperConfig,
    ) -> Result<OwnedFd, Error> {
        let mut state = self.state();
        state.living.retain_mut(|living| !living.remove_if_exited());
        let same_kind = state.living.iter().filter(|living| living.server == server && living.kind == kind);
        if same_kind.count() >= MAX_HELPERS_PER_KIND {
            return Err(Error::TooManyHelpers(MAX_HELPERS_PER_KIND));
        }
        state.started += 1;
        let name = format!("helper-{}", state.started);
        let tree = if has_root() { state.tree(&self.data_dir) } else { None };
        let group = tree.map(|tree| tree.create_group(&name, &limits(order))).transpose()?;
        match self.spawn(order, group.as_ref()) {
            Ok((process, stream)) => {
                state.living.push(RunningHelper { server, kind, process, group });
                Ok(stream)
            }
            Err(error) => {
                if let Some(group) = group {
                    group.remove_recursively()?;
                }
                Err(error)
            }
        }
    }

    fn spawn(&self, order: &HelperConfig, group: Option<&Cgroup>) -> Result<(Jailed, OwnedFd), Error> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(Error::io("socket pair for a helper"))?;
        let mut arguments = order.arguments.clone();
        let delegated =
            group.map(|group| group.delegate_to(self.user.uid, self.user.gid)).transpose()?.flatten();
        if let Some(below) = delegated {
            arguments.extend(["--groups".to_owned(), below.display().to_string()]);
        }
        let process = ProcessSpec {
            program: SELF_EXE.into(),
            arguments,
            environment: order.environment.clone(),
            uid: self.user.uid,
            gid: self.user.gid,
            groups: Vec::new(),
            oom_score_adj: oom_score_adj::HELPER,
            confinement: confinement(order),
        };
        let cgroup_doors = group.map(Cgroup::open_procs_files).transpose()?.unwrap_or_default();
        let handles =
            Handles { cgroup_procs_files: cgroup_doors, inherited: vec![theirs], ..Handles::default() };
        Ok((skep_jail::spawn(&self.binary, &process, handles)?, ours))
    }

    /// Ends the helpers of a server. Blocks for some tens of milliseconds.
    pub(crate) fn end_all_of(&self, server: ServerId) {
        let mut state = self.state();
        for living in state.living.extract_if(.., |living| living.server == server) {
            let mut living = living;
            if let Err(error) = living.end() {
                tracing::error!(%error, "a helper could not be removed: {error}");
            }
        }
    }

    /// Removes the cgroups of helpers. Call it when all servers have ended.
    pub(crate) fn close(&self) -> Result<(), Error> {
        if let Some(Some(tree)) = self.state().tree.take() {
            tree.remove()?;
        }
        cleanup::remove_helper_groups_record(&self.data_dir)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn confinement(order: &HelperConfig) -> Confinement {
    if !has_root() {
        return Confinement::SameUser(Session::New);
    }
    Confinement::Secluded(Seclusion { scratch: order.scratch.clone(), executable: order.executable.clone() })
}

fn limits(order: &HelperConfig) -> CgroupLimits {
    let HelperConfig { memory_bytes, pids, .. } = *order;
    CgroupLimits { memory_bytes, pids, cpu_weight: 100, cpu_percent: None }
}

impl State {
    fn tree(&mut self, data_dir: &DataDir) -> Option<&CgroupTree> {
        let tree = self.tree.get_or_insert_with(|| match make_tree(data_dir) {
            Ok(tree) => Some(tree),
            Err(error) => {
                tracing::warn!(%error, "programs of callers run without a limit on memory and processes: {error}");
                None
            }
        });
        tree.as_ref()
    }
}

/// Creates the cgroup tree and removes the groups that a crashed keeper left there.
fn make_tree(data_dir: &DataDir) -> Result<CgroupTree, Error> {
    let tree = CgroupTree::create(&data_dir.helpers_name())?;
    let ready =
        cleanup::record_helper_groups(data_dir, &tree).and_then(|()| Ok(tree.remove_all_but(|_| false)?));
    match ready {
        Ok(()) => Ok(tree),
        Err(error) => {
            tree.remove()?;
            Err(error)
        }
    }
}

impl RunningHelper {
    /// Whether the helper ended by itself. Its resources are removed then.
    fn remove_if_exited(&mut self) -> bool {
        if !self.process.wait(Duration::ZERO).unwrap_or(false) {
            return false;
        }
        if let Err(error) = self.end() {
            tracing::error!(%error, "a helper that ended could not be removed: {error}");
        }
        true
    }

    fn end(&mut self) -> Result<(), Error> {
        if !has_root() {
            // Killed, it would leave its programs running.
            self.process.wait(EXIT_TIMEOUT)?;
        }
        self.process.kill()?;
        self.process.wait(KILL_TIMEOUT)?;
        self.process.reap();
        self.group.take().map_or(Ok(()), |group| Ok(group.remove_recursively()?))
    }
}
