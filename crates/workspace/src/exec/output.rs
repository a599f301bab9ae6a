//! A reader of the output of a command.

use std::sync::Arc;

use skep_api::exec::ExecEvent;
use tokio::sync::watch;

use super::running::{Running, State, Stream};

/// The positions of one reader in both streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader {
    stdout: u64,
    stderr: u64,
}

impl Reader {
    pub(super) fn at(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }

    fn go_to(&mut self, stream: Stream, offset: u64) {
        match stream {
            Stream::Stdout => self.stdout = offset,
            Stream::Stderr => self.stderr = offset,
        }
    }
}

/// A reader of the output of a command. The command blocks while a reader is too far behind; dropping the reader
/// unblocks it.
#[derive(Debug)]
pub struct Output {
    running: Arc<Running>,
    key: u64,
    reader: Reader,
    /// The stream to read next. The streams alternate, so that one cannot hide the other.
    turn: Stream,
    missed: bool,
    done: bool,
    added: watch::Receiver<()>,
}

impl Output {
    pub(super) fn new(running: Arc<Running>, stdout: u64, stderr: u64) -> Self {
        let reader = Reader { stdout, stderr };
        let added = running.listen_for_output();
        let mut state = running.state();
        let key = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(key, reader);
        drop(state);
        Self { running, key, reader, turn: Stream::Stdout, missed: false, done: false, added }
    }

    /// The command whose output it reads.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Returns the next event and, for output, the offset of its first byte in its stream. If the offset is larger
    /// than the end of the previous event, the bytes in between were discarded. `None` after the exit event.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<(u64, ExecEvent)> {
        loop {
            if self.done {
                return None;
            }
            if let Some(event) = self.next_now() {
                self.running.reader_moved();
                return Some(event);
            }
            // Never fails: `running` holds the sender.
            let _ = self.added.changed().await;
        }
    }

    fn next_now(&mut self) -> Option<(u64, ExecEvent)> {
        let running = Arc::clone(&self.running);
        let mut state = running.state();
        let other = if self.turn == Stream::Stdout { Stream::Stderr } else { Stream::Stdout };
        for stream in [self.turn, other] {
            let from = self.reader.at(stream);
            if let Some(piece) = state.tape(stream).piece(from) {
                self.missed |= piece.offset > from;
                self.reader.go_to(stream, piece.offset + piece.data.len() as u64);
                state.readers.insert(self.key, self.reader);
                self.turn = if stream == Stream::Stdout { Stream::Stderr } else { Stream::Stdout };
                let event = match stream {
                    Stream::Stdout => ExecEvent::Stdout(piece.data),
                    Stream::Stderr => ExecEvent::Stderr(piece.data),
                };
                return Some((piece.offset, event));
            }
        }
        self.exit(&state)
    }

    fn exit(&mut self, state: &State) -> Option<(u64, ExecEvent)> {
        let mut exit = state.ended()?.exit.clone();
        // Only output that this reader missed counts as truncated.
        exit.truncated = self.missed;
        self.done = true;
        Some((0, ExecEvent::Exit(exit)))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.running.state().readers.remove(&self.key);
        self.running.reader_moved();
    }
}
