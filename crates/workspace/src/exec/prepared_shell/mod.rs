//! Prepared shells: loaded, linked, and stopped before the first instruction of their program.
//!
//! ```text
//! zygote (linked once) ── copy ──► ready (streams, session, control group) ── run ──► shell of a command
//! ```
//! A prepared shell behaves like one started by `/bin/sh -c`: its arguments, environment and directory are written to
//! where the kernel would have put them before it executes any of its own instructions. The only difference is that
//! all copies of one zygote share the random numbers that the kernel gives to each program it starts.
//!
//! If anything unexpected happens, the command is started as a new shell instead. Only the saved time is lost, so
//! failures are not reported.

mod loaded_files;
mod process_layout;
mod scratch;
mod stack;
mod syscalls;
mod trace;
mod zygote;

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};
use skep_api::exec::RunCommand;
use tokio::net::unix::pipe;

use super::{Commands, cgroup::ControlGroup, shell::Shell, spawn::Spawned};
use crate::Place;
use trace::{SigchldBlock, Tracee};
use zygote::Zygote;

/// After this number of failures in a row, no more shells are prepared.
const MAX_FAILURES: u32 = 3;
/// The interval at which a concurrent preparation is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Prepares shells and starts commands in them.
#[derive(Debug)]
pub(super) struct PreparedShell {
    /// The working directory of most commands.
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    linked: Option<Arc<LinkedZygote>>,
    ready: Option<Ready>,
    preparing: bool,
    /// Failures in a row.
    failures: u32,
    /// The number of discards. A preparation that began before a discard must not be used after it.
    discarded: u64,
}

#[derive(Debug)]
struct LinkedZygote {
    shell: Arc<Shell>,
    zygote: Zygote,
}

/// A copy of the zygote that has everything except its command.
#[derive(Debug)]
struct Ready {
    group: ControlGroup,
    tracee: Tracee,
    spawned: Spawned,
}

impl PreparedShell {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, state: Mutex::default() }
    }

    /// Starts a command in a prepared shell. `None` if no shell is ready, or the command needs a new one.
    pub(super) fn run(
        &self,
        commands: &Commands,
        command: &RunCommand,
        cwd: &Path,
        place: &Place,
    ) -> Option<(ControlGroup, Spawned)> {
        let linked = self.state().linked.clone()?;
        let image = linked.zygote.stack().image(&command.command, &environment(command, place))?;
        if !linked.zygote.is_traced_by_this_thread() {
            return None;
        }
        let ready = self.take_ready(commands, &linked, command.stdin.is_piped());
        let started = ready.and_then(|ready| {
            let chdir_to = (!linked.zygote.has_cwd(cwd)).then_some(cwd);
            match linked.zygote.run(&ready.tracee, &image, chdir_to) {
                Ok(()) => Ok((ready.group, ready.spawned)),
                Err(error) => {
                    discard_shell(commands, ready.spawned.shell.into(), Some(ready.group));
                    Err(error)
                }
            }
        });
        started.inspect_err(|_| self.discard(commands)).ok()
    }

    fn take_ready(&self, commands: &Commands, linked: &LinkedZygote, with_stdin: bool) -> io::Result<Ready> {
        if !linked.zygote.is_current() {
            return Err(io::Error::other("/bin/sh is another one now"));
        }
        let ready = if with_stdin { None } else { self.state().ready.take() };
        ready.map_or_else(|| copy(commands, linked, with_stdin), Ok)
    }

    /// Prepares a shell, unless another task does so or it failed too often. Errors are not reported.
    pub(super) async fn prepare(&self, commands: &Commands) {
        let Some(mut discarded) = self.begin_preparing() else { return };
        while self.make_ready(commands, discarded).await.is_err() {
            self.discard(commands);
            let mut state = self.state();
            state.failures += 1;
            if state.is_settled() {
                break;
            }
            discarded = state.discarded;
        }
        self.state().preparing = false;
    }

    /// Begins a preparation if one is needed, and returns the current number of discards.
    fn begin_preparing(&self) -> Option<u64> {
        let mut state = self.state();
        if state.preparing || state.is_settled() {
            return None;
        }
        state.preparing = true;
        Some(state.discarded)
    }

    /// The number of discards so far. Work for a prepared shell is obsolete once it changes.
    pub(super) fn discard_count(&self) -> u64 {
        self.state().discarded
    }

    async fn make_ready(&self, commands: &Commands, discarded: u64) -> io::Result<()> {
        let known = self.state().linked.clone();
        let linked = match known {
            Some(linked) => linked,
            None => Arc::new(link(commands, &self.directory).await?),
        };
        if self.state().discarded != discarded {
            discard_shell(commands, Arc::clone(&linked.shell), None);
            return Ok(());
        }
        self.state().linked = Some(Arc::clone(&linked));
        let ready = copy(commands, &linked, false)?;
        let mut state = self.state();
        state.ready = Some(ready);
        state.failures = 0;
        Ok(())
    }

    /// Waits until a shell is ready or preparing has failed for good.
    pub(super) async fn wait_until_ready(&self, commands: &Commands) {
        self.prepare(commands).await;
        while !self.state().is_settled() {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.prepare(commands).await;
        }
    }

    /// Kills the prepared shells, including the zygote.
    pub(super) fn discard(&self, commands: &Commands) {
        let (linked, ready) = {
            let mut state = self.state();
            state.discarded += 1;
            (state.linked.take(), state.ready.take())
        };
        if let Some(ready) = ready {
            discard_shell(commands, ready.spawned.shell.into(), Some(ready.group));
        }
        if let Some(linked) = linked {
            discard_shell(commands, Arc::clone(&linked.shell), None);
        }
    }

    /// Recovering from poisoning is sound: every change is a single step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_settled(&self) -> bool {
        self.ready.is_some() || self.failures >= MAX_FAILURES
    }
}

fn environment<'a>(command: &'a RunCommand, place: &'a Place) -> BTreeMap<&'a str, &'a str> {
    place.env().iter().chain(&command.env).map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

async fn link(commands: &Commands, directory: &Path) -> io::Result<LinkedZygote> {
    let (pid, socket) = commands.spawn_owned(|| {
        let (child, socket) = zygote::spawn(directory)?;
        Ok::<_, io::Error>((Pid::from_child(&child), socket))
    })?;
    let shell = commands.adopt(pid)?;
    match Zygote::link(pid, directory, socket).await {
        Ok(zygote) => Ok(LinkedZygote { shell: shell.into(), zygote }),
        Err(error) => {
            discard_shell(commands, shell.into(), None);
            Err(error)
        }
    }
}

/// Makes a copy of the zygote and sets up everything except its command.
fn copy(commands: &Commands, linked: &LinkedZygote, with_stdin: bool) -> io::Result<Ready> {
    let (stdin, stdin_pipe) = if with_stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        (theirs, Some(pipe::Sender::from_owned_fd(ours)?))
    } else {
        (OwnedFd::from(File::open("/dev/null")?), None)
    };
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, stderr) = (pipe::Receiver::from_owned_fd(stdout)?, pipe::Receiver::from_owned_fd(stderr)?);
    let sigchld_block = &SigchldBlock::new()?;
    let (pid, ()) = commands.spawn_owned(|| linked.zygote.copy(sigchld_block).map(|pid| (pid, ())))?;
    let shell = commands.adopt(pid)?;
    let group = match commands.unnamed_group() {
        Ok(group) => group,
        Err(error) => {
            discard_shell(commands, shell.into(), None);
            return Err(error);
        }
    };
    let set_up = linked.zygote.set_up_copy(sigchld_block, pid, [&stdin, &their_stdout, &their_stderr]);
    match set_up.and_then(|tracee| group.add_process(pid).map(|()| tracee)) {
        Ok(tracee) => {
            Ok(Ready { group, tracee, spawned: Spawned { shell, stdin: stdin_pipe, stdout, stderr } })
        }
        Err(error) => {
            discard_shell(commands, shell.into(), Some(group));
            Err(error)
        }
    }
}

/// Kills a shell that is not needed, and reaps it in a separate task.
fn discard_shell(commands: &Commands, shell: Arc<Shell>, group: Option<ControlGroup>) {
    shell.kill();
    let commands = commands.clone();
    tokio::spawn(async move {
        shell.wait_until_ended().await;
        let _ = shell.reap();
        commands.disown(&shell);
        // The shell had no children, so the group is empty.
        group.map(|group| group.remove());
    });
}
