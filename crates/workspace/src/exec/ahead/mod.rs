//! Shells that are started ahead: loaded, linked, and stopped before the first instruction of their own.
//!
//! ```text
//! zygote (linked once) ── copy ──► ready (streams, session, control group) ── run ──► the shell of a command
//! ```
//! A shell that is a copy cannot be told from one by `/bin/sh -c`: its arguments, environment and directory are put
//! where the kernel would have put them before it executes anything, and then it is let go. Its beginning differs only
//! in what all copies of one zygote share: the random numbers that the kernel gives to each program it starts.
//!
//! Whatever is unexpected costs the time that was to be saved, and no more: there is none ahead then, and the command
//! gets a shell of its own. So failures are not told.

mod calls;
mod facts;
mod files;
mod scratch;
mod stack;
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
use trace::{Attention, Tracee};
use zygote::Zygote;

/// How many failures in a row show that it does not work here.
const MAX_FAILURES: u32 = 3;
/// How often one looks whether another is done preparing.
const GLANCE: Duration = Duration::from_millis(1);

/// The shells that are started ahead.
#[derive(Debug)]
pub(super) struct ShellAhead {
    /// Where most commands start.
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    linked: Option<Arc<Linked>>,
    ready: Option<Ready>,
    preparing: bool,
    /// In a row.
    failures: u32,
    /// Counts how often all was discarded: what was begun before is not wanted after.
    discarded: u64,
}

#[derive(Debug)]
struct Linked {
    shell: Arc<Shell>,
    zygote: Zygote,
}

/// A copy that only lacks its command.
#[derive(Debug)]
struct Ready {
    group: ControlGroup,
    tracee: Tracee,
    spawned: Spawned,
}

impl ShellAhead {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, state: Mutex::default() }
    }

    /// Runs a command. `None` where no shell is ahead, or the command needs one of its own.
    pub(super) fn run(
        &self,
        commands: &Commands,
        command: &RunCommand,
        cwd: &Path,
        place: &Place,
    ) -> Option<(ControlGroup, Spawned)> {
        let linked = self.state().linked.clone()?;
        let image = linked.zygote.stack().image(&command.command, &environment(command, place))?;
        if !linked.zygote.is_of_this_thread() {
            return None;
        }
        let ready = self.hand_over(commands, &linked, command.stdin.is_piped());
        let started = ready.and_then(|ready| {
            let elsewhere = (!linked.zygote.stands_in(cwd)).then_some(cwd);
            match linked.zygote.run(&ready.tracee, &image, elsewhere) {
                Ok(()) => Ok((ready.group, ready.spawned)),
                Err(error) => {
                    bury(commands, ready.spawned.shell.into(), Some(ready.group));
                    Err(error)
                }
            }
        });
        started.inspect_err(|_| self.discard(commands)).ok()
    }

    fn hand_over(&self, commands: &Commands, linked: &Linked, with_stdin: bool) -> io::Result<Ready> {
        if !linked.zygote.is_current() {
            return Err(io::Error::other("/bin/sh is another one now"));
        }
        let ready = if with_stdin { None } else { self.state().ready.take() };
        ready.map_or_else(|| copy(commands, linked, with_stdin), Ok)
    }

    /// Sees to it that a shell is ready, unless somebody else does or it is hopeless. Fails silently.
    pub(super) async fn prepare(&self, commands: &Commands) {
        let Some(mut discarded) = self.begin() else { return };
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

    /// Begins to prepare where that is needed, and returns how often all was discarded before.
    fn begin(&self) -> Option<u64> {
        let mut state = self.state();
        if state.preparing || state.is_settled() {
            return None;
        }
        state.preparing = true;
        Some(state.discarded)
    }

    /// How often all was discarded: what was to be done before that need not be done after it.
    pub(super) fn discarded(&self) -> u64 {
        self.state().discarded
    }

    async fn make_ready(&self, commands: &Commands, discarded: u64) -> io::Result<()> {
        let known = self.state().linked.clone();
        let linked = match known {
            Some(linked) => linked,
            None => Arc::new(link(commands, &self.directory).await?),
        };
        if self.state().discarded != discarded {
            bury(commands, Arc::clone(&linked.shell), None);
            return Ok(());
        }
        self.state().linked = Some(Arc::clone(&linked));
        let ready = copy(commands, &linked, false)?;
        let mut state = self.state();
        state.ready = Some(ready);
        state.failures = 0;
        Ok(())
    }

    /// Waits until a shell is ready, or none will be.
    pub(super) async fn rest(&self, commands: &Commands) {
        self.prepare(commands).await;
        while !self.state().is_settled() {
            tokio::time::sleep(GLANCE).await;
            self.prepare(commands).await;
        }
    }

    /// Ends those that wait. The next is a new one from the ground up.
    pub(super) fn discard(&self, commands: &Commands) {
        let (linked, ready) = {
            let mut state = self.state();
            state.discarded += 1;
            (state.linked.take(), state.ready.take())
        };
        if let Some(ready) = ready {
            bury(commands, ready.spawned.shell.into(), Some(ready.group));
        }
        if let Some(linked) = linked {
            bury(commands, Arc::clone(&linked.shell), None);
        }
    }

    /// A panic elsewhere leaves the state whole: every change is a single step.
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

async fn link(commands: &Commands, directory: &Path) -> io::Result<Linked> {
    let (pid, socket) = commands.bear(|| {
        let (child, socket) = zygote::spawn(directory)?;
        Ok::<_, io::Error>((Pid::from_child(&child), socket))
    })?;
    let shell = commands.adopt(pid)?;
    match Zygote::link(pid, directory, socket).await {
        Ok(zygote) => Ok(Linked { shell: shell.into(), zygote }),
        Err(error) => {
            bury(commands, shell.into(), None);
            Err(error)
        }
    }
}

/// Makes a copy and gives it all but its command.
fn copy(commands: &Commands, linked: &Linked, with_stdin: bool) -> io::Result<Ready> {
    let (stdin, stdin_pipe) = if with_stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        (theirs, Some(pipe::Sender::from_owned_fd(ours)?))
    } else {
        (OwnedFd::from(File::open("/dev/null")?), None)
    };
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, stderr) = (pipe::Receiver::from_owned_fd(stdout)?, pipe::Receiver::from_owned_fd(stderr)?);
    let attention = &Attention::pay()?;
    let (pid, ()) = commands.bear(|| linked.zygote.copy(attention).map(|pid| (pid, ())))?;
    let shell = commands.adopt(pid)?;
    let group = match commands.unnamed_group() {
        Ok(group) => group,
        Err(error) => {
            bury(commands, shell.into(), None);
            return Err(error);
        }
    };
    let equipped = linked.zygote.equip(attention, pid, [&stdin, &their_stdout, &their_stderr]);
    match equipped.and_then(|tracee| group.take_in(pid).map(|()| tracee)) {
        Ok(tracee) => {
            Ok(Ready { group, tracee, spawned: Spawned { shell, stdin: stdin_pipe, stdout, stderr } })
        }
        Err(error) => {
            bury(commands, shell.into(), Some(group));
            Err(error)
        }
    }
}

/// Ends a shell that is not needed, and awaits it elsewhere.
fn bury(commands: &Commands, shell: Arc<Shell>, group: Option<ControlGroup>) {
    shell.kill();
    let commands = commands.clone();
    tokio::spawn(async move {
        shell.ended().await;
        let _ = shell.status();
        commands.disown(&shell);
        // It had no children, so nothing keeps the group.
        group.map(|group| group.remove());
    });
}
