//! A command that runs or ran, with what it printed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::process::Signal;
use skep_api::exec::{ExecExit, ExecOutcome};
use tokio::sync::{mpsc, watch};

use super::{Output, bounds::Bounds, input::Input, output::Reader, tape::Tape};

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// A command that runs or ran. It goes on whether or not anybody reads what it prints; with a reader that is behind,
/// it waits for it as it would for any pipe.
#[derive(Debug)]
pub struct Running {
    id: String,
    bounds: Bounds,
    input: Input,
    /// To the task that awaits the shell: only there its process id cannot be another process's.
    signals: mpsc::Sender<Signal>,
    state: Mutex<State>,
    /// Rings when output or the end was added: readers listen.
    added: watch::Sender<()>,
    /// Rings when a reader went on or left: those who fill the tapes listen.
    taken: watch::Sender<()>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    stdout: Tape,
    stderr: Tape,
    pub(super) readers: BTreeMap<u64, Reader>,
    pub(super) next_reader: u64,
    shell_ended: bool,
    ended: Option<Ended>,
}

/// How it ended, and when.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) exit: ExecExit,
    at: Instant,
}

impl State {
    pub(super) fn tape(&self, stream: Stream) -> &Tape {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    fn tape_mut(&mut self, stream: Stream) -> &mut Tape {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    pub(super) fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }
}

impl Running {
    pub(super) fn new(id: &str, bounds: Bounds, input: Input, signals: mpsc::Sender<Signal>) -> Arc<Self> {
        Arc::new(Self {
            id: id.to_owned(),
            bounds,
            input,
            signals,
            state: Mutex::default(),
            added: watch::Sender::new(()),
            taken: watch::Sender::new(()),
        })
    }

    /// The id that it was started under.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Reads what it prints, from these offsets on: 0 is all that is kept.
    pub fn attach(self: &Arc<Self>, stdout_offset: u64, stderr_offset: u64) -> Output {
        Output::new(Arc::clone(self), stdout_offset, stderr_offset)
    }

    /// Waits for its end.
    pub async fn outcome(&self) -> ExecOutcome {
        let mut added = self.added.subscribe();
        loop {
            if let Some(outcome) = self.outcome_now() {
                return outcome;
            }
            // The sender lives as long as `self`, so this never fails.
            let _ = added.changed().await;
        }
    }

    fn outcome_now(&self) -> Option<ExecOutcome> {
        let state = self.state();
        let exit = state.ended.as_ref()?.exit.clone();
        Some(ExecOutcome {
            exit_code: exit.exit_code,
            signal: exit.signal,
            stdout: state.stdout.text(),
            stderr: state.stderr.text(),
            duration_ms: exit.duration_ms,
            timed_out: exit.timed_out,
            truncated: exit.truncated,
        })
    }

    /// Writes to its standard input, if that is streamed, and waits until its pipe has taken the bytes. `false` where it takes
    /// no more.
    pub async fn write_stdin(&self, bytes: Bytes) -> bool {
        self.input.write(bytes).await
    }

    /// Ends its standard input behind what was written.
    pub fn end_stdin(&self) {
        self.input.end();
    }

    /// Sends a signal to the process group of its shell. Nothing happens once the shell ended.
    pub(super) async fn signal(&self, signal: Signal) {
        let _ = self.signals.send(signal).await;
    }

    /// Ends everything that it started, if its shell still runs.
    pub fn cancel(&self) {
        if !self.state().shell_ended {
            self.kill();
        }
    }

    pub(super) fn kill(&self) {
        // Fails only where the group is gone, and with it everything inside.
        let _ = self.bounds.kill();
    }

    /// Removes its control group. `false` while something that it started lives on.
    pub(super) fn remove_group(&self) -> bool {
        self.bounds.remove()
    }

    /// How long ago it ended and how many bytes are kept of it. `None` while it runs.
    pub(super) fn remains(&self) -> Option<(Duration, usize)> {
        let state = self.state();
        state.ended.as_ref().map(|ended| (ended.at.elapsed(), state.stdout.kept() + state.stderr.kept()))
    }

    pub(super) fn append(&self, stream: Stream, bytes: &[u8]) {
        self.state().tape_mut(stream).append(bytes);
        self.added.send_replace(());
    }

    /// How many bytes of this stream came so far.
    pub(super) fn recorded(&self, stream: Stream) -> u64 {
        self.state().tape(stream).total()
    }

    /// Whether more of this stream may be read from the command now.
    pub(super) fn has_room(&self, stream: Stream) -> bool {
        let state = self.state();
        if state.shell_ended {
            return true;
        }
        let slowest = state.readers.values().map(|reader| reader.at(stream)).min();
        slowest.is_none_or(|reader| state.tape(stream).has_room(reader))
    }

    /// The shell ended: what it left in the pipes is read, whoever is behind.
    pub(super) fn shell_ended(&self) {
        self.state().shell_ended = true;
        self.taken.send_replace(());
    }

    /// Nothing more is recorded.
    pub(super) fn finish(&self, mut exit: ExecExit) {
        let mut state = self.state();
        state.stdout.end();
        state.stderr.end();
        exit.truncated = state.stdout.left_out() || state.stderr.left_out();
        state.ended = Some(Ended { exit, at: Instant::now() });
        drop(state);
        self.added.send_replace(());
    }

    pub(super) fn listen_for_output(&self) -> watch::Receiver<()> {
        self.added.subscribe()
    }

    pub(super) fn listen_for_readers(&self) -> watch::Receiver<()> {
        self.taken.subscribe()
    }

    pub(super) fn reader_moved(&self) {
        self.taken.send_replace(());
    }

    /// A panic elsewhere leaves the state whole: every change is a single step.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
