//! The stream of events of one subscriber.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use skep_api::{
    ErrorCode, Failure,
    events::{EventId, GapReason},
};
use skep_store::{ReadEvents, Store};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::{frame, tail::Tail, wanted::Wanted};
use crate::error::Refusal;

/// Interval of the keep-alive comments, which also reveal a client that is gone.
const PULSE: Duration = Duration::from_secs(15);
/// Events that the store examines for one page, and the size of a page in bytes.
const PAGE: u32 = 1_000;
const PAGE_BYTES: usize = 64 << 10;

/// The position of a reader.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The last event that was sent or passed over.
    pub at: EventId,
    /// The last event before the epoch began. Older events are not sent.
    pub began: u64,
}

/// Reads the events of one subscriber.
pub(crate) struct Reader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tail: Tail,
    /// From [`Tail::follow`], which must be called before the cursor is looked up.
    pub(crate) told: watch::Receiver<u64>,
    pub(crate) wanted: Wanted,
    pub(crate) place: Place,
    /// Frames that are sent before the events.
    pub(crate) first: Vec<Bytes>,
    /// Completes with the reason when the stream has to end.
    pub(crate) ends: Pin<Box<dyn Future<Output = Failure> + Send>>,
}

impl Reader {
    /// The frames of the stream, until `end` completes or an error occurs.
    pub(crate) fn into_frames(mut self) -> impl Stream<Item = Bytes> + Send {
        let mut pulse = interval_at(tokio::time::Instant::now() + PULSE, PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let given = VecDeque::from(std::mem::take(&mut self.first));
        stream::unfold(Some((self, given, pulse)), |state| async move {
            let (mut reader, mut given, mut pulse) = state?;
            loop {
                if let Some(frame) = given.pop_front() {
                    return Some((frame, Some((reader, given, pulse))));
                }
                match reader.next(&mut pulse).await {
                    Ok(frames) => given.extend(frames),
                    Err(refusal) => {
                        if let Some(cause) = refusal.cause() {
                            tracing::error!("a stream of events broke: {cause}");
                        }
                        return Some((frame::refused(&refusal), None));
                    }
                }
            }
        })
    }

    async fn next(&mut self, pulse: &mut Interval) -> Result<Vec<Bytes>, Refusal> {
        let Self { store, tail, told, wanted, place, ends, .. } = self;
        tokio::select! {
            biased;
            failure = ends => Err(failure.into()),
            _ = pulse.tick() => Ok(vec![frame::place(&place.at)]),
            frames = events(store, tail, told, wanted, place) => frames,
        }
    }
}

/// The next frames. Cancel safe: the cursor moves only together with the frames that are returned.
async fn events(
    store: &Arc<dyn Store>,
    tail: &Tail,
    told: &mut watch::Receiver<u64>,
    wanted: &Wanted,
    place: &mut Place,
) -> Result<Vec<Bytes>, Refusal> {
    loop {
        // Marked as seen before the buffer is read, so that later events wake this reader.
        told.borrow_and_update();
        let frames = match tail.after(place.at.sequence, wanted) {
            Some(found) => {
                place.at.sequence = found.upto;
                if found.frames.is_empty() && told.changed().await.is_err() {
                    let message = "the server is shutting down; reconnect with the id of the last event";
                    return Err(Refusal::new(ErrorCode::ShuttingDown, message));
                }
                found.frames
            }
            None => page(Arc::clone(store), wanted, place).await?,
        };
        if !frames.is_empty() {
            return Ok(frames);
        }
    }
}

/// A page from the store, preceded by a gap event if older events are gone.
async fn page(store: Arc<dyn Store>, wanted: &Wanted, place: &mut Place) -> Result<Vec<Bytes>, Refusal> {
    let after = place.at.sequence;
    let (of, kinds) = (wanted.from(), wanted.kinds().to_vec());
    let query = ReadEvents { of, kinds, after, limit: PAGE, bytes: PAGE_BYTES };
    // A separate task waits for the store, because this future is polled only while the client reads.
    let reading = AbortOnDropHandle::new(tokio::spawn(async move { store.read_events(query).await }));
    let page = reading.await.map_err(|error| Refusal::internal(error.to_string()))??;
    let mut frames = Vec::with_capacity(page.events.len() + 1);
    if after + 1 < page.span.oldest {
        let on = EventId { sequence: page.span.oldest - 1, ..place.at.clone() };
        frames.push(frame::gap(&on, GapReason::Expired, &place.at));
    }
    place.at.sequence = page.upto;
    let own = page.events.iter().filter(|event| event.sequence > place.began);
    frames.extend(own.map(frame::event));
    Ok(frames)
}
