//! A command that runs or has ended, with its output.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::process::Signal;
use skep_api::exec::{ExecExit, ExecOutcome};
use tokio::sync::{mpsc, watch};

use super::{Output, input::Input, output::Reader, output_buffer::OutputBuffer, process_set::ProcessSet};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// A command that runs or has ended. It runs whether or not its output is read. If a reader is behind, the command
/// blocks as it would on any full pipe.
#[derive(Debug)]
pub struct Running {
    id: String,
    processes: ProcessSet,
    input: Input,
    /// The receiver is the task that waits for the shell: only there the process id is certain to be the shell's.
    signals: mpsc::Sender<Signal>,
    state: Mutex<State>,
    /// Notifies readers of new output and of the end.
    output_added: watch::Sender<()>,
    /// Notifies the recording tasks that a reader advanced or left.
    reader_advanced: watch::Sender<()>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    stdout: OutputBuffer,
    stderr: OutputBuffer,
    pub(super) readers: BTreeMap<u64, Reader>,
    pub(super) next_reader: u64,
    shell_ended: bool,
    ended: Option<Ended>,
}

#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) exit: ExecExit,
    at: Instant,
}

impl State {
    pub(super) fn buffer(&self, stream: Stream) -> &OutputBuffer {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    fn buffer_mut(&mut self, stream: Stream) -> &mut OutputBuffer {
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
    pub(super) fn new(
        id: &str,
        processes: ProcessSet,
        input: Input,
        signals: mpsc::Sender<Signal>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id: id.to_owned(),
            processes,
            input,
            signals,
            state: Mutex::default(),
            output_added: watch::Sender::new(()),
            reader_advanced: watch::Sender::new(()),
        })
    }

    /// The id under which it was started.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Creates a reader that starts at these offsets. From 0 it reads everything that is kept.
    pub fn attach(self: &Arc<Self>, stdout_offset: u64, stderr_offset: u64) -> Output {
        Output::new(Arc::clone(self), stdout_offset, stderr_offset)
    }

    /// Waits until the command has ended.
    pub async fn outcome(&self) -> ExecOutcome {
        let mut added = self.output_added.subscribe();
        loop {
            if let Some(outcome) = self.outcome_now() {
                return outcome;
            }
            // Never fails: the sender lives as long as `self`.
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

    /// Writes to the standard input, if it is streamed, and waits until the pipe has taken the bytes. Returns `false`
    /// if the pipe accepts no more.
    pub async fn write_stdin(&self, bytes: Bytes) -> bool {
        self.input.write(bytes).await
    }

    /// Closes the standard input after what was written.
    pub fn end_stdin(&self) {
        self.input.end();
    }

    /// Sends a signal to the process group of the shell. Does nothing once the shell has ended.
    pub(super) async fn signal(&self, signal: Signal) {
        let _ = self.signals.send(signal).await;
    }

    /// Kills all processes of the command, if its shell still runs.
    pub fn cancel(&self) {
        if !self.state().shell_ended {
            self.kill();
        }
    }

    pub(super) fn kill(&self) {
        // Fails only if the control group, and with it every process, is gone.
        let _ = self.processes.kill();
    }

    /// Removes the control group. Returns `false` while processes live in it.
    pub(super) fn remove_group(&self) -> bool {
        self.processes.remove()
    }

    /// Time since the end, and the number of bytes that are kept. `None` while it runs.
    pub(super) fn age_and_size(&self) -> Option<(Duration, usize)> {
        let state = self.state();
        state
            .ended
            .as_ref()
            .map(|ended| (ended.at.elapsed(), state.stdout.kept_bytes() + state.stderr.kept_bytes()))
    }

    pub(super) fn append(&self, stream: Stream, bytes: &[u8]) {
        self.state().buffer_mut(stream).append(bytes);
        self.output_added.send_replace(());
    }

    /// How many bytes of a stream were recorded so far.
    pub(super) fn recorded(&self, stream: Stream) -> u64 {
        self.state().buffer(stream).total()
    }

    /// Whether more may be read from the pipe of a stream.
    pub(super) fn has_room(&self, stream: Stream) -> bool {
        let state = self.state();
        if state.shell_ended {
            return true;
        }
        let slowest = state.readers.values().map(|reader| reader.at(stream)).min();
        slowest.is_none_or(|reader| state.buffer(stream).has_room(reader))
    }

    /// Called when the shell has ended. From now on the pipes are read even if a reader is behind.
    pub(super) fn shell_ended(&self) {
        self.state().shell_ended = true;
        self.reader_advanced.send_replace(());
    }

    /// Records the end. Later output is discarded.
    pub(super) fn finish(&self, mut exit: ExecExit) {
        let mut state = self.state();
        state.stdout.finish();
        state.stderr.finish();
        exit.truncated = state.stdout.is_truncated() || state.stderr.is_truncated();
        state.ended = Some(Ended { exit, at: Instant::now() });
        drop(state);
        self.output_added.send_replace(());
    }

    pub(super) fn listen_for_output(&self) -> watch::Receiver<()> {
        self.output_added.subscribe()
    }

    pub(super) fn listen_for_readers(&self) -> watch::Receiver<()> {
        self.reader_advanced.subscribe()
    }

    pub(super) fn notify_reader_moved(&self) {
        self.reader_advanced.send_replace(());
    }

    /// Recovering from poisoning is sound: every change is a single step.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
