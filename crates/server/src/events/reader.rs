//! One who follows: its place, and what it is given next.

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

/// How often a reader is told that nothing happened, which also shows whether it is still there.
const PULSE: Duration = Duration::from_secs(15);
/// Events that are looked at for one page out of the store, and what it may take in bytes.
const PAGE: u32 = 1_000;
const PAGE_BYTES: usize = 64 << 10;

/// Where a reader stands.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Behind this event it goes on.
    pub at: EventId,
    /// The last event before the epoch began: what is older is not told.
    pub began: u64,
}

/// One who follows.
pub(crate) struct Reader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tail: Tail,
    /// From [`Tail::follow`], called before the place was looked up.
    pub(crate) told: watch::Receiver<u64>,
    pub(crate) wanted: Wanted,
    pub(crate) place: Place,
    /// What comes first.
    pub(crate) first: Vec<Bytes>,
    /// Ready with the reason why the stream ends.
    pub(crate) ends: Pin<Box<dyn Future<Output = Failure> + Send>>,
}

impl Reader {
    /// The events, for as long as there is no reason to end.
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

/// The next events. Nothing is lost where this is given up: the place moves with what is answered.
async fn events(
    store: &Arc<dyn Store>,
    tail: &Tail,
    told: &mut watch::Receiver<u64>,
    wanted: &Wanted,
    place: &mut Place,
) -> Result<Vec<Bytes>, Refusal> {
    loop {
        // Before the look: what comes after it is told.
        told.borrow_and_update();
        let frames = match tail.after(place.at.sequence, wanted) {
            Some(found) => {
                place.at.sequence = found.upto;
                if found.frames.is_empty() && told.changed().await.is_err() {
                    let message = "the server ends; come back with the last event's id";
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

/// A page out of the store, and what is missing before it.
async fn page(store: Arc<dyn Store>, wanted: &Wanted, place: &mut Place) -> Result<Vec<Bytes>, Refusal> {
    let after = place.at.sequence;
    let (of, kinds) = (wanted.from(), wanted.kinds().to_vec());
    let query = ReadEvents { of, kinds, after, limit: PAGE, bytes: PAGE_BYTES };
    // A task of its own waits for the store: this is polled only while the caller reads.
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
