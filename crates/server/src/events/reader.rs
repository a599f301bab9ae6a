//! The stream of events of one subscriber.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use skep_api::{
    ErrorCode, Failure,
    events::{EventId, GapReason},
};
use skep_store::{EventStore, ReadEvents};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::{filter::EventFilter, frame, tail::Tail};
use crate::error::Refusal;

/// Interval of the keep-alive comments, which also reveal a client that is gone.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Events that the store examines for one page, and the size of a page in bytes.
const PAGE_EVENTS: u32 = 1_000;
const PAGE_BYTES: usize = 64 << 10;

/// The position of a reader.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    /// The last event that was sent or passed over.
    pub at: EventId,
    /// The last event before the epoch began. Older events are not sent.
    pub epoch_start: u64,
}

/// Reads the events of one subscriber.
pub(crate) struct Reader {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) tail: Tail,
    /// From [`Tail::subscribe`], which must be called before the cursor is looked up.
    pub(crate) buffered: watch::Receiver<u64>,
    pub(crate) filter: EventFilter,
    pub(crate) cursor: Cursor,
    /// The event after which the stream ends. `None` if it follows new events.
    pub(crate) until: Option<u64>,
    /// Frames that are sent before the events.
    pub(crate) initial_frames: Vec<Bytes>,
    /// Completes with the reason when the stream has to end.
    pub(crate) end: Pin<Box<dyn Future<Output = Failure> + Send>>,
}

impl Reader {
    /// The frames of the stream, until `until` is reached, `end` completes or an error occurs.
    pub(crate) fn into_frames(mut self) -> impl Stream<Item = Bytes> + Send {
        let mut keep_alive =
            interval_at(tokio::time::Instant::now() + KEEP_ALIVE_INTERVAL, KEEP_ALIVE_INTERVAL);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let pending = VecDeque::from(std::mem::take(&mut self.initial_frames));
        stream::unfold(Some((self, pending, keep_alive)), |state| async move {
            let (mut reader, mut given, mut pulse) = state?;
            loop {
                if let Some(frame) = given.pop_front() {
                    return Some((frame, Some((reader, given, pulse))));
                }
                match reader.next(&mut pulse).await {
                    Ok(frames) if frames.is_empty() => return None,
                    Ok(frames) => given.extend(frames),
                    Err(refusal) => return Some((frame::refused(&refusal), None)),
                }
            }
        })
    }

    /// The next frames. Empty at the end of a stream that does not follow new events.
    async fn next(&mut self, keep_alive: &mut Interval) -> Result<Vec<Bytes>, Refusal> {
        let Self { store, tail, buffered, filter: wanted, cursor: place, until, end: ends, .. } = self;
        tokio::select! {
            biased;
            failure = ends => Err(failure.into()),
            _ = keep_alive.tick() => Ok(vec![frame::keep_alive(&place.at)]),
            frames = next_frames(store, tail, buffered, wanted, place, *until) => frames,
        }
    }
}

/// The next frames; none once the cursor has reached `until`. Cancel safe: the cursor moves only together with the frames
/// that are returned.
async fn next_frames(
    store: &Arc<dyn EventStore>,
    tail: &Tail,
    buffered: &mut watch::Receiver<u64>,
    filter: &EventFilter,
    cursor: &mut Cursor,
    until: Option<u64>,
) -> Result<Vec<Bytes>, Refusal> {
    let is_end = |sequence: u64| until.is_some_and(|newest| sequence >= newest);
    while !is_end(cursor.at.sequence) {
        // Marked as seen before the buffer is read, so that later events wake this reader.
        buffered.borrow_and_update();
        let frames = match tail.after(cursor.at.sequence, filter) {
            Some(batch) => {
                cursor.at.sequence = batch.upto;
                if batch.frames.is_empty() && !is_end(batch.upto) && buffered.changed().await.is_err() {
                    let message = "the server is shutting down; reconnect with the id of the last event";
                    return Err(Refusal::new(ErrorCode::ShuttingDown, message));
                }
                batch.frames
            }
            None => read_page(Arc::clone(store), filter, cursor).await?,
        };
        if !frames.is_empty() {
            return Ok(frames);
        }
    }
    Ok(Vec::new())
}

/// A page from the store, preceded by a gap event if older events are gone.
async fn read_page(
    store: Arc<dyn EventStore>,
    filter: &EventFilter,
    cursor: &mut Cursor,
) -> Result<Vec<Bytes>, Refusal> {
    let after = cursor.at.sequence;
    let (of, kinds) = (filter.source(), filter.kinds().to_vec());
    let query = ReadEvents { scope: of, kinds, after, limit: PAGE_EVENTS, bytes: PAGE_BYTES };
    // A separate task waits for the store, because this future is polled only while the client reads.
    let reading = AbortOnDropHandle::new(tokio::spawn(async move { store.read_events(query).await }));
    let page = reading.await.map_err(|error| Refusal::internal(error.to_string()))??;
    let mut frames = Vec::with_capacity(page.events.len() + 1);
    if after + 1 < page.span.oldest {
        let on = EventId { sequence: page.span.oldest - 1, ..cursor.at.clone() };
        frames.push(frame::gap(&on, GapReason::Expired, &cursor.at));
    }
    cursor.at.sequence = page.examined_to;
    let own = page.events.iter().filter(|event| event.sequence > cursor.epoch_start);
    frames.extend(own.map(frame::event));
    Ok(frames)
}
