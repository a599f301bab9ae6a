//! The buffer of the newest events, read from the store once for all subscribers.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use skep_api::{AccountId, TicketId};
use skep_store::{Event, EventKind, EventPage, EventsOf, ReadEvents, Store};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::{frame, wanted::Wanted};

/// Events in the buffer, and the size of their frames in bytes. A reader that is further behind reads from the store.
const MOST: usize = 4_096;
const MOST_BYTES: usize = 4 << 20;
/// Events and bytes of one read from the store.
const BATCH: u32 = 1_024;
const BATCH_BYTES: usize = 1 << 20;
/// Batches read in succession. If there are still more events then, the buffer is emptied and restarts at the newest
/// one.
const BATCHES: usize = 8;
/// Frames and bytes that a reader gets at once.
const GIVEN: usize = 64;
const GIVEN_BYTES: usize = 64 << 10;
/// How often the store is read without a signal: another process may have written to it.
const LOOK: Duration = Duration::from_secs(1);

/// An event of the buffer, already encoded.
#[derive(Debug)]
pub(super) struct Told {
    sequence: u64,
    pub(super) account: AccountId,
    pub(super) kind: EventKind,
    pub(super) ticket: Option<TicketId>,
    frame: Bytes,
}

/// Contiguous events, in order.
#[derive(Debug, Default)]
struct Stretch {
    /// Sequence number, exclusive.
    from: u64,
    /// Sequence number, inclusive.
    to: u64,
    events: VecDeque<Told>,
    bytes: usize,
}

/// Frames for one reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) frames: Vec<Bytes>,
    /// The sequence number up to which the buffer was examined.
    pub(super) upto: u64,
}

/// The buffer. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Tail(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stretch: Mutex<Stretch>,
    /// The newest sequence number in the buffer. Its receivers are the subscribers.
    told: watch::Sender<u64>,
    /// Notified when a subscriber is added.
    begun: Notify,
}

impl Default for Tail {
    fn default() -> Self {
        let told = watch::channel(0).0;
        Self(Arc::new(Shared { stretch: Mutex::default(), told, begun: Notify::new() }))
    }
}

impl Tail {
    /// Subscribes: every event written from now on marks the receiver as changed.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        let told = self.0.told.subscribe();
        self.0.begun.notify_one();
        told
    }

    /// The events after `sequence` that match. `None` if the buffer no longer holds all of them.
    pub(super) fn after(&self, place: u64, wanted: &Wanted) -> Option<Found> {
        self.lock().after(place, wanted)
    }

    /// Reads new events into the buffer while there are subscribers, until it is dropped.
    pub(crate) async fn read(&self, store: &dyn Store) -> Infallible {
        let mut commits = store.commits();
        while let Err(error) = self.jump(store).await {
            tracing::warn!(%error, "the newest event could not be read; retrying: {error}");
            sleep(LOOK).await;
        }
        loop {
            commits.borrow_and_update();
            if self.0.told.receiver_count() > 0
                && let Err(error) = self.catch_up(store).await
            {
                tracing::warn!(%error, "new events could not be read; retrying: {error}");
                sleep(LOOK).await;
                continue;
            }
            tokio::select! {
                changed = commits.changed() => if changed.is_err() {
                    // The store is shutting down, and the server with it.
                    std::future::pending().await
                },
                () = self.0.begun.notified() => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    async fn catch_up(&self, store: &dyn Store) -> skep_store::Result<()> {
        for _ in 0..BATCHES {
            let after = self.lock().to;
            let query = ReadEvents {
                of: EventsOf::All,
                kinds: EventKind::ALL.to_vec(),
                after,
                limit: BATCH,
                bytes: BATCH_BYTES,
            };
            let page = store.read_events(query).await?;
            let more = page.more;
            if page.upto > after {
                let upto = page.upto;
                self.lock().append(page);
                self.0.told.send_replace(upto);
            }
            if !more {
                return Ok(());
            }
        }
        // There was no subscriber for long, or events arrive too fast: each reader then reads the store at its own
        // pace.
        self.jump(store).await
    }

    /// Empties the buffer and continues after the newest event.
    async fn jump(&self, store: &dyn Store) -> skep_store::Result<()> {
        let newest = store.event_span().await?.newest;
        *self.lock() = Stretch { from: newest, to: newest, ..Stretch::default() };
        self.0.told.send_replace(newest);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Stretch> {
        self.0.stretch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stretch {
    fn append(&mut self, page: EventPage) {
        for event in &page.events {
            let told = Told::of(event);
            self.bytes += told.frame.len();
            self.events.push_back(told);
        }
        self.to = page.upto;
        while self.events.len() > MOST || self.bytes > MOST_BYTES {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.frame.len();
            self.from = oldest.sequence;
        }
    }

    fn after(&self, place: u64, wanted: &Wanted) -> Option<Found> {
        if place < self.from {
            return None;
        }
        let first = self.events.partition_point(|told| told.sequence <= place);
        let (mut frames, mut bytes) = (Vec::new(), 0);
        for told in self.events.range(first..).filter(|told| wanted.takes(told)) {
            if frames.len() >= GIVEN || bytes >= GIVEN_BYTES {
                return Some(Found { frames, upto: told.sequence - 1 });
            }
            bytes += told.frame.len();
            frames.push(told.frame.clone());
        }
        Some(Found { frames, upto: self.to.max(place) })
    }
}

impl Told {
    fn of(event: &Event) -> Self {
        let Event { sequence, account, kind, ticket, .. } = *event;
        Self { sequence, account, kind, ticket, frame: frame::event(event) }
    }
}
