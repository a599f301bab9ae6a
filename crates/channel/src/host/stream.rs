//! The stream of a command's events.

use std::{
    any::Any,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use hyper::body::{Body, Incoming};
use skep_api::exec::{ExecEvent, KEPT_OUTPUT_BYTES};
use tokio::time::{Sleep, sleep};

use super::{Error, ExecControl, cancel::CancelOnDrop};
use crate::wire::Decoder;

/// The most bytes that are accepted after the deadline: both streams as the guest keeps them, and data in transit.
const MAX_LATE_BYTES: usize = 3 * KEPT_OUTPUT_BYTES;

/// The events of a command; the exit is the last one. Dropping the stream before the exit kills the command in the
/// guest.
#[derive(Debug)]
pub struct ExecStream {
    body: Incoming,
    decoder: Decoder,
    cancel: CancelOnDrop,
    stdout_offset: u64,
    stderr_offset: u64,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
    late_bytes: usize,
    finished: bool,
    _guard: Option<Box<dyn Any + Send + Sync>>,
}

impl ExecStream {
    pub(super) fn new(body: Incoming, cancel: CancelOnDrop, offsets: (u64, u64), limit: Duration) -> Self {
        Self {
            body,
            decoder: Decoder::default(),
            cancel,
            stdout_offset: offsets.0,
            stderr_offset: offsets.1,
            limit,
            deadline: Box::pin(sleep(limit)),
            late_bytes: 0,
            finished: false,
            _guard: None,
        }
    }

    /// Keeps a value for as long as the stream exists.
    #[must_use]
    pub fn with_guard(self, guard: impl Any + Send + Sync) -> Self {
        Self { _guard: Some(Box::new(guard)), ..self }
    }

    /// The id of the command in its VM, with which it can be attached to again.
    pub fn id(&self) -> &str {
        self.cancel.id()
    }

    /// A handle that sends input and signals to the command.
    pub fn control(&self) -> ExecControl {
        ExecControl::new(self.cancel.guest(), self.id())
    }

    /// The offset of the next byte of standard output, for a later [`Guest::attach`](super::Guest::attach).
    pub fn stdout_offset(&self) -> u64 {
        self.stdout_offset
    }

    /// The offset of the next byte of standard error, for a later [`Guest::attach`](super::Guest::attach).
    pub fn stderr_offset(&self) -> u64 {
        self.stderr_offset
    }

    /// Lets the command keep running when this stream is dropped.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.cancel.disarm();
        self
    }

    /// Drops the stream and lets the command keep running. It can be attached to by its id.
    pub fn detach(self) {
        drop(self.detached());
    }

    fn decode_next(&mut self) -> Result<Option<ExecEvent>, Error> {
        let malformed = |error: crate::wire::Malformed| Error::Malformed(error.to_string());
        let Some((offset, event)) = self.decoder.next_event().map_err(malformed)? else { return Ok(None) };
        match &event {
            ExecEvent::Stdout(data) => self.stdout_offset = offset.saturating_add(data.len() as u64),
            ExecEvent::Stderr(data) => self.stderr_offset = offset.saturating_add(data.len() as u64),
            ExecEvent::Exit(_) => {
                self.finished = true;
                self.cancel.disarm();
            }
        }
        Ok(Some(event))
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<ExecEvent, Error>> {
        loop {
            if let Some(event) = self.decode_next()? {
                return Poll::Ready(Ok(event));
            }
            let deadline = self.deadline.as_mut().poll(cx);
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                ready!(deadline);
                return Poll::Ready(Err(Error::Timeout(self.limit)));
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        // A guest that sends data without end must time out, too.
                        if deadline.is_ready() {
                            self.late_bytes += data.len();
                        }
                        if self.late_bytes > MAX_LATE_BYTES {
                            return Poll::Ready(Err(Error::Timeout(self.limit)));
                        }
                        self.decoder.feed(&data);
                    }
                }
                Some(Err(_)) => return Poll::Ready(Err(Error::Ended)),
                None => {
                    let reason = "the events of a command ended before its exit".to_owned();
                    return Poll::Ready(Err(Error::Malformed(reason)));
                }
            }
        }
    }
}

impl Stream for ExecStream {
    type Item = Result<ExecEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.finished {
            return Poll::Ready(None);
        }
        let event = ready!(self.poll_event(cx));
        // No event follows an error. The command is killed if the guest can still be reached.
        self.finished |= event.is_err();
        Poll::Ready(Some(event))
    }
}
