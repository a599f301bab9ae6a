//! The newest events, read once for all who follow.

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

/// Events that are kept at hand, and what their frames may take in bytes. Whoever is further behind reads the store.
const MOST: usize = 4_096;
const MOST_BYTES: usize = 4 << 20;
/// What is read at once.
const BATCH: u32 = 1_024;
const BATCH_BYTES: usize = 1 << 20;
/// Batches that are read one after the other; what is newer by then is not caught up with, but begun from.
const BATCHES: usize = 8;
/// What a reader is given at once.
const GIVEN: usize = 64;
const GIVEN_BYTES: usize = 64 << 10;
/// How often the store is looked at although it told of nothing: another process may have written.
const LOOK: Duration = Duration::from_secs(1);

/// An event, ready for the wire.
#[derive(Debug)]
pub(super) struct Told {
    sequence: u64,
    pub(super) account: AccountId,
    pub(super) kind: EventKind,
    pub(super) ticket: Option<TicketId>,
    frame: Bytes,
}

/// All events of a stretch, in order.
#[derive(Debug, Default)]
struct Stretch {
    /// What is behind this place is here.
    from: u64,
    /// Up to this one.
    to: u64,
    events: VecDeque<Told>,
    bytes: usize,
}

/// What a reader finds at hand.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) frames: Vec<Bytes>,
    /// Where it goes on.
    pub(super) upto: u64,
}

/// The newest events.
#[derive(Debug, Clone)]
pub(crate) struct Tail(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stretch: Mutex<Stretch>,
    /// Up to where they are at hand. Those who listen are those who follow.
    told: watch::Sender<u64>,
    /// Somebody begins to follow.
    begun: Notify,
}

impl Default for Tail {
    fn default() -> Self {
        let told = watch::channel(0).0;
        Self(Arc::new(Shared { stretch: Mutex::default(), told, begun: Notify::new() }))
    }
}

impl Tail {
    /// Begins to follow: whatever is written from now on makes the receiver change.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        let told = self.0.told.subscribe();
        self.0.begun.notify_one();
        told
    }

    /// What is wanted of the events behind this place; `None` where they are not at hand any more.
    pub(super) fn after(&self, place: u64, wanted: &Wanted) -> Option<Found> {
        self.lock().after(place, wanted)
    }

    /// Reads what is new, for as long as somebody follows.
    pub(crate) async fn read(&self, store: &dyn Store) -> Infallible {
        let mut commits = store.commits();
        while let Err(error) = self.jump(store).await {
            tracing::warn!(%error, "the newest event was not read; tried again soon: {error}");
            sleep(LOOK).await;
        }
        loop {
            commits.borrow_and_update();
            if self.0.told.receiver_count() > 0
                && let Err(error) = self.catch_up(store).await
            {
                tracing::warn!(%error, "new events were not read; tried again soon: {error}");
                sleep(LOOK).await;
                continue;
            }
            tokio::select! {
                changed = commits.changed() => if changed.is_err() {
                    // The store is going away, and the server with it.
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
        // Nobody followed for long, or nobody can follow as fast: each reads the store at its own pace.
        self.jump(store).await
    }

    /// Begins anew behind the newest event.
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
