//! The commands of a workspace: those that run and those that ended recently.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use skep_api::exec::RunCommand;
use tokio::sync::mpsc;

use super::{
    cgroup::ControlGroup,
    input::Input,
    process_set::ProcessSet,
    running::Running,
    shell::Shell,
    spawn::{Spawned, check, spawn, working_directory},
    supervise::{Controls, supervise},
};
use crate::{Error, Place};

/// How many ended commands are kept for readers that reconnect.
const KEPT_COUNT: usize = 64;
/// How many signals can be queued for one command.
const WAITING_SIGNALS: usize = 8;
/// How much output of ended commands is kept, in bytes.
const KEPT_BYTES: usize = 8 << 20;
const KEPT_FOR: Duration = Duration::from_secs(600);
/// How long no other command must have started before control groups of ended commands are removed.
const CLEANUP_DELAY: Duration = Duration::from_millis(100);
/// How many control groups of ended commands may wait for removal, and how many are removed per ended command beyond
/// that.
const MAX_PENDING_GROUPS: usize = 64;
const REMOVED_AT_ONCE: usize = 2;
/// The interval at which [`Commands::wait_until_idle`] checks whether all children have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often other tasks are let run first when a command ends: its reader, then the connection that sends the answer.
const YIELDS_BEFORE_CLEANUP: usize = 3;

/// The commands of a workspace. Cheap to clone; clones share them.
#[derive(Debug, Clone)]
pub struct Commands(Arc<Table>);

#[derive(Debug)]
struct Table {
    /// `None` if control groups cannot be created.
    cgroup_parent: Option<PathBuf>,
    started: AtomicU64,
    /// Counts generated ids.
    generated_ids: AtomicU64,
    registry: Mutex<Registry>,
    /// Process ids of children that this process waits for itself.
    owned: Mutex<BTreeSet<u32>>,
}

#[derive(Debug, Default)]
struct Registry {
    by_id: BTreeMap<String, Arc<Running>>,
    /// Ended commands, oldest first.
    ended: VecDeque<Arc<Running>>,
    /// Ended commands whose control group still exists: it contains processes, or was not removed yet.
    pending_groups: VecDeque<Arc<Running>>,
}

impl Commands {
    pub(crate) fn new(cgroup_parent: Option<PathBuf>) -> Self {
        Self(Arc::new(Table {
            cgroup_parent,
            started: AtomicU64::new(0),
            generated_ids: AtomicU64::new(0),
            registry: Mutex::default(),
            owned: Mutex::default(),
        }))
    }

    /// Starts a command under an id that the caller chose: 1 to 64 of `A-Z a-z 0-9 _ -`.
    ///
    /// # Errors
    /// The request has an invalid value, the working directory is missing, not a directory or outside the roots, the
    /// id is in use, or the kernel refuses. No process was started in these cases.
    pub fn start(&self, id: &str, command: &RunCommand, place: &Place) -> Result<Arc<Running>, Error> {
        check_id(id)?;
        check(command)?;
        let cwd = working_directory(command.cwd.as_deref(), place)?;
        let mut registry = self.registry();
        registry.evict();
        if registry.by_id.contains_key(id) {
            return Err(Error::IdTaken { id: id.to_owned() });
        }
        let (processes, spawned) = self.launch(id, command, &cwd, place)?;
        self.0.started.fetch_add(1, Ordering::Relaxed);
        let (input, source) = Input::from_stdin(&command.stdin);
        let (signals, signalled) = mpsc::channel(WAITING_SIGNALS);
        let running = Running::new(id, processes, input, signals);
        registry.by_id.insert(id.to_owned(), Arc::clone(&running));
        drop(registry);
        let (commands, supervised) = (self.clone(), Arc::clone(&running));
        let limit = Duration::from_millis(command.timeout_ms);
        let controls = Controls { source, signals: signalled, limit };
        tokio::spawn(async move {
            let shell = spawned.shell.id();
            supervise(Arc::clone(&supervised), spawned, controls).await;
            commands.clean_up(shell, supervised).await;
        });
        Ok(running)
    }

    /// Starts the shell of a command, in its own control group where these are available.
    fn launch(
        &self,
        id: &str,
        command: &RunCommand,
        cwd: &Path,
        place: &Place,
    ) -> Result<(ProcessSet, Spawned), Error> {
        let Some(parent) = &self.0.cgroup_parent else {
            let (shell, spawned) = self.spawn_owned(|| spawn(command, cwd, None, place))?;
            return Ok((ProcessSet::Descendants(shell), spawned));
        };
        let failed = |source| Error::ControlGroup { path: parent.join(id), source };
        let group = ControlGroup::create(parent, id).map_err(failed)?;
        let started = group
            .open_procs_file()
            .map_err(failed)
            .and_then(|entrance| Ok(self.spawn_owned(|| spawn(command, cwd, Some(entrance), place))?));
        match started {
            Ok((_, spawned)) => Ok((ProcessSet::Group(group), spawned)),
            Err(error) => {
                group.remove();
                Err(error)
            }
        }
    }

    async fn clean_up(&self, shell: u32, running: Arc<Running>) {
        for _ in 0..YIELDS_BEFORE_CLEANUP {
            tokio::task::yield_now().await;
        }
        self.owned().remove(&shell);
        self.registry().record_end(running);
        let started = self.started();
        tokio::time::sleep(CLEANUP_DELAY).await;
        // A caller that runs commands in quick succession does not wait for the removal of earlier groups.
        if self.started() == started {
            self.registry().remove_groups(usize::MAX);
        }
    }

    /// How many commands were started so far.
    fn started(&self) -> u64 {
        self.0.started.load(Ordering::Relaxed)
    }

    /// Starts a child and registers it as owned. The list is locked meanwhile, so that the reaper of orphans cannot
    /// see the child before it is registered.
    pub(crate) fn spawn_owned<T>(
        &self,
        start: impl FnOnce() -> io::Result<(Pid, T)>,
    ) -> io::Result<(Pid, T)> {
        let mut owned = self.owned();
        let child = start()?;
        owned.insert(child.0.as_raw_pid().unsigned_abs());
        Ok(child)
    }

    /// Removes a child that ended from the owned ones.
    pub(crate) fn disown(&self, shell: &Shell) {
        self.owned().remove(&shell.id());
    }

    /// Wraps a child so that it can be awaited. If that fails, the child is killed and reaped.
    pub(crate) fn adopt(&self, child: Pid) -> io::Result<Shell> {
        Shell::adopt(child).inspect_err(|_| {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::empty());
            self.owned().remove(&child.as_raw_pid().unsigned_abs());
        })
    }

    /// Removes the control groups of ended commands now, which otherwise happens [`CLEANUP_DELAY`] after the last one.
    pub fn remove_ended_groups(&self) {
        self.registry().remove_groups(usize::MAX);
    }

    /// Waits until this process has no children left that it waits for.
    pub async fn wait_until_idle(&self) {
        while !self.owned().is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// # Errors
    /// The command was never started here, or its result was discarded.
    pub fn find(&self, id: &str) -> Result<Arc<Running>, Error> {
        self.registry().by_id.get(id).cloned().ok_or_else(|| Error::UnknownCommand { id: id.to_owned() })
    }

    /// Discards all ended commands: the next owner of the VM must not see them.
    pub fn forget_ended(&self) {
        let mut registry = self.registry();
        registry.by_id.retain(|_, running| {
            let runs = running.age_and_size().is_none();
            // A later command with this id needs the group's name.
            runs || {
                running.remove_group();
                false
            }
        });
        registry.ended.clear();
    }

    /// Whether this process waits for `pid` itself, so that the reaper of orphans must not.
    pub fn owns(&self, pid: u32) -> bool {
        self.owned().contains(&pid)
    }

    /// An id for a command of a caller that gave none.
    pub(crate) fn unused_id(&self) -> String {
        format!("local_{}", self.0.generated_ids.fetch_add(1, Ordering::Relaxed))
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owned(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn record_end(&mut self, running: Arc<Running>) {
        self.pending_groups.push_back(Arc::clone(&running));
        if self.pending_groups.len() > MAX_PENDING_GROUPS {
            self.remove_groups(REMOVED_AT_ONCE);
        }
        // It may have been discarded since it ended.
        if self.by_id.get(running.id()).is_some_and(|kept| Arc::ptr_eq(kept, &running)) {
            self.ended.push_back(running);
        }
        self.evict();
    }

    /// Tries to remove up to `count` control groups, oldest first. Groups with processes stay.
    fn remove_groups(&mut self, count: usize) {
        for _ in 0..count.min(self.pending_groups.len()) {
            let removed = self.pending_groups.pop_front().filter(|running| !running.remove_group());
            self.pending_groups.extend(removed);
        }
    }

    /// Discards ended commands beyond the limits on count, size and age.
    fn evict(&mut self) {
        let remains = self.ended.iter().filter_map(|running| running.age_and_size());
        let mut bytes: usize = remains.map(|(_, kept)| kept).sum();
        while let Some((age, kept)) = self.ended.front().and_then(|running| running.age_and_size()) {
            if self.ended.len() <= KEPT_COUNT && bytes <= KEPT_BYTES && age <= KEPT_FOR {
                break;
            }
            bytes -= kept;
            if let Some(forgotten) = self.ended.pop_front() {
                self.by_id.remove(forgotten.id());
            }
        }
    }
}

/// Ids are names of control groups, so they must be valid file names.
fn check_id(id: &str) -> Result<(), Error> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=64).contains(&id.len()) && id.bytes().all(fits) {
        return Ok(());
    }
    let reason = format!("is `{}`; it must be 1 to 64 of A-Z, a-z, 0-9, `_`, `-`", id.escape_debug());
    Err(Error::InvalidValue { field: "id", reason })
}
