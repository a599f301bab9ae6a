//! The prepared shells of a process: when they are made, used and discarded.

use std::{
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
use tokio::net::unix::pipe;

use crate::{
    Processes, ShellCommand, StartedShell,
    trace::{SigchldBlock, Tracee},
    zygote::{self, Zygote},
};

/// After this number of failures in a row, no more shells are prepared.
const MAX_FAILURES: u32 = 3;
/// The interval at which a concurrent preparation is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Prepares shells and starts commands in them. All calls but [`Self::discard_count`] take the same table of processes.
#[derive(Debug)]
pub struct PreparedShell<P> {
    /// The working directory of most commands.
    directory: PathBuf,
    state: Mutex<State<P>>,
}

#[derive(Debug)]
struct State<P> {
    linked: Option<Arc<LinkedZygote<P>>>,
    ready: Option<Ready<P>>,
    preparing: bool,
    /// Failures in a row.
    failures: u32,
    /// The number of discards. A preparation that began before a discard must not be used after it.
    discarded: u64,
}

#[derive(Debug)]
struct LinkedZygote<P> {
    process: Arc<P>,
    zygote: Zygote,
}

/// A copy of the zygote that has everything except its command.
#[derive(Debug)]
struct Ready<P> {
    tracee: Tracee,
    shell: StartedShell<P>,
}

impl<P> PreparedShell<P> {
    /// `directory` is the working directory of most commands.
    pub fn new(directory: PathBuf) -> Self {
        let state = State { linked: None, ready: None, preparing: false, failures: 0, discarded: 0 };
        Self { directory, state: Mutex::new(state) }
    }

    /// Starts a command in a prepared shell. `None` if no shell is ready, or the command needs a new one.
    pub fn start(
        &self,
        processes: &impl Processes<Process = P>,
        command: &ShellCommand<'_>,
    ) -> Option<StartedShell<P>> {
        let linked = self.state().linked.clone()?;
        let image = linked.zygote.stack().image(command.text, command.environment)?;
        if !linked.zygote.is_traced_by_this_thread() {
            return None;
        }
        let ready = self.take_ready(processes, &linked, command.with_stdin);
        let started = ready.and_then(|ready| {
            let chdir_to = (!linked.zygote.has_cwd(command.directory)).then_some(command.directory);
            match linked.zygote.run(&ready.tracee, &image, chdir_to) {
                Ok(()) => Ok(ready.shell),
                Err(error) => {
                    processes.discard(ready.shell.process.into());
                    Err(error)
                }
            }
        });
        started.inspect_err(|_| self.discard(processes)).ok()
    }

    fn take_ready(
        &self,
        processes: &impl Processes<Process = P>,
        linked: &LinkedZygote<P>,
        with_stdin: bool,
    ) -> io::Result<Ready<P>> {
        if !linked.zygote.is_current() {
            return Err(io::Error::other("/bin/sh is another one now"));
        }
        let ready = if with_stdin { None } else { self.state().ready.take() };
        ready.map_or_else(|| copy(processes, linked, with_stdin), Ok)
    }

    /// Prepares a shell, unless another task does so or it failed too often. Errors are not reported.
    pub async fn prepare(&self, processes: &impl Processes<Process = P>) {
        let Some(mut discarded) = self.begin_preparing() else { return };
        while self.make_ready(processes, discarded).await.is_err() {
            self.discard(processes);
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
    pub fn discard_count(&self) -> u64 {
        self.state().discarded
    }

    async fn make_ready(&self, processes: &impl Processes<Process = P>, discarded: u64) -> io::Result<()> {
        let known = self.state().linked.clone();
        let linked = match known {
            Some(linked) => linked,
            None => Arc::new(link(processes, &self.directory).await?),
        };
        if self.state().discarded != discarded {
            processes.discard(Arc::clone(&linked.process));
            return Ok(());
        }
        self.state().linked = Some(Arc::clone(&linked));
        let ready = copy(processes, &linked, false)?;
        let mut state = self.state();
        state.ready = Some(ready);
        state.failures = 0;
        Ok(())
    }

    /// Waits until a shell is ready or preparing has failed for good.
    pub async fn wait_until_ready(&self, processes: &impl Processes<Process = P>) {
        self.prepare(processes).await;
        while !self.state().is_settled() {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.prepare(processes).await;
        }
    }

    /// Kills the prepared shells, including the zygote.
    pub fn discard(&self, processes: &impl Processes<Process = P>) {
        let (linked, ready) = {
            let mut state = self.state();
            state.discarded += 1;
            (state.linked.take(), state.ready.take())
        };
        if let Some(ready) = ready {
            processes.discard(ready.shell.process.into());
        }
        if let Some(linked) = linked {
            processes.discard(Arc::clone(&linked.process));
        }
    }

    /// Recovering from poisoning is sound: every change is a single step.
    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> State<P> {
    fn is_settled(&self) -> bool {
        self.ready.is_some() || self.failures >= MAX_FAILURES
    }
}

async fn link<P>(processes: &impl Processes<Process = P>, directory: &Path) -> io::Result<LinkedZygote<P>> {
    let (process, (pid, socket)) = processes.add(|| {
        let (child, socket) = zygote::spawn(directory)?;
        let pid = Pid::from_child(&child);
        Ok((pid, (pid, socket)))
    })?;
    let process = Arc::new(process);
    match Zygote::link(pid, directory, socket).await {
        Ok(zygote) => Ok(LinkedZygote { process, zygote }),
        Err(error) => {
            processes.discard(process);
            Err(error)
        }
    }
}

/// Makes a copy of the zygote and sets up everything except its command.
fn copy<P>(
    processes: &impl Processes<Process = P>,
    linked: &LinkedZygote<P>,
    with_stdin: bool,
) -> io::Result<Ready<P>> {
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
    let (mut process, pid) = processes.add(|| linked.zygote.copy(sigchld_block).map(|pid| (pid, pid)))?;
    let set_up = linked.zygote.set_up_copy(sigchld_block, pid, [&stdin, &their_stdout, &their_stderr]);
    match set_up.and_then(|tracee| processes.isolate(&mut process).map(|()| tracee)) {
        Ok(tracee) => {
            Ok(Ready { tracee, shell: StartedShell { process, stdin: stdin_pipe, stdout, stderr } })
        }
        Err(error) => {
            processes.discard(process.into());
            Err(error)
        }
    }
}
