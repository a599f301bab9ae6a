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

    fn seek(&mut self, stream: Stream, offset: u64) {
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
    next_stream: Stream,
    truncated: bool,
    done: bool,
    output_added: watch::Receiver<()>,
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
        Self {
            running,
            key,
            reader,
            next_stream: Stream::Stdout,
            truncated: false,
            done: false,
            output_added: added,
        }
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
                self.running.notify_reader_moved();
                return Some(event);
            }
            // Never fails: `running` holds the sender.
            let _ = self.output_added.changed().await;
        }
    }

    fn next_now(&mut self) -> Option<(u64, ExecEvent)> {
        let running = Arc::clone(&self.running);
        let mut state = running.state();
        let other = if self.next_stream == Stream::Stdout { Stream::Stderr } else { Stream::Stdout };
        for stream in [self.next_stream, other] {
            let from = self.reader.at(stream);
            if let Some(piece) = state.buffer(stream).next_chunk(from) {
                self.truncated |= piece.offset > from;
                self.reader.seek(stream, piece.offset + piece.data.len() as u64);
                state.readers.insert(self.key, self.reader);
                self.next_stream = if stream == Stream::Stdout { Stream::Stderr } else { Stream::Stdout };
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
        exit.truncated = self.truncated;
        self.done = true;
        Some((0, ExecEvent::Exit(exit)))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.running.state().readers.remove(&self.key);
        self.running.notify_reader_moved();
    }
}
