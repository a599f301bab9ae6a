//! The buffer of the newest events, read from the store once for all subscribers.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use skep_api::{AccountId, TicketId};
use skep_store::{Event, EventKind, EventPage, EventScope, EventStore, ReadEvents};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::{filter::EventFilter, frame};

/// Events in the buffer, and the size of their frames in bytes. A reader that is further behind reads from the store.
const MAX_EVENTS: usize = 4_096;
const MAX_BYTES: usize = 4 << 20;
/// Events and bytes of one read from the store.
const BATCH_EVENTS: u32 = 1_024;
const BATCH_BYTES: usize = 1 << 20;
/// Batches read in succession. If there are still more events then, the buffer is emptied and restarts at the newest
/// one.
const MAX_BATCHES: usize = 8;
/// Frames and bytes that a reader gets at once.
const READER_FRAMES: usize = 64;
const READER_BYTES: usize = 64 << 10;
/// How often the store is read without a signal: another process may have written to it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// An event of the buffer, already encoded.
#[derive(Debug)]
pub(super) struct BufferedEvent {
    sequence: u64,
    pub(super) account: AccountId,
    pub(super) kind: EventKind,
    pub(super) ticket: Option<TicketId>,
    frame: Bytes,
}

/// Contiguous events, in order.
#[derive(Debug, Default)]
struct Buffer {
    /// Sequence number, exclusive.
    from: u64,
    /// Sequence number, inclusive.
    to: u64,
    events: VecDeque<BufferedEvent>,
    bytes: usize,
}

/// Frames for one reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReaderBatch {
    pub(super) frames: Vec<Bytes>,
    /// The sequence number up to which the buffer was examined.
    pub(super) upto: u64,
}

/// The buffer. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Tail(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    buffer: Mutex<Buffer>,
    /// The newest sequence number in the buffer. Its receivers are the subscribers.
    newest: watch::Sender<u64>,
    /// Notified when a subscriber is added.
    subscribed: Notify,
}

impl Default for Tail {
    fn default() -> Self {
        let newest = watch::channel(0).0;
        Self(Arc::new(Shared { buffer: Mutex::default(), newest, subscribed: Notify::new() }))
    }
}

impl Tail {
    /// Subscribes: every event written from now on marks the receiver as changed.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        let newest = self.0.newest.subscribe();
        self.0.subscribed.notify_one();
        newest
    }

    /// The events after `sequence` that match. `None` if the buffer no longer holds all of them.
    pub(super) fn after(&self, sequence: u64, filter: &EventFilter) -> Option<ReaderBatch> {
        self.lock().after(sequence, filter)
    }

    /// Reads new events into the buffer while there are subscribers, until it is dropped.
    pub(crate) async fn run(&self, store: &dyn EventStore) -> Infallible {
        let mut commits = store.commits();
        while let Err(error) = self.skip_to_newest(store).await {
            tracing::warn!(%error, "the newest event could not be read; retrying: {error}");
            sleep(POLL_INTERVAL).await;
        }
        loop {
            commits.borrow_and_update();
            if self.0.newest.receiver_count() > 0
                && let Err(error) = self.catch_up(store).await
            {
                tracing::warn!(%error, "new events could not be read; retrying: {error}");
                sleep(POLL_INTERVAL).await;
                continue;
            }
            tokio::select! {
                changed = commits.changed() => if changed.is_err() {
                    // The store is shutting down, and the server with it.
                    std::future::pending().await
                },
                () = self.0.subscribed.notified() => {}
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn catch_up(&self, store: &dyn EventStore) -> skep_store::Result<()> {
        for _ in 0..MAX_BATCHES {
            let after = self.lock().to;
            let query = ReadEvents {
                scope: EventScope::All,
                kinds: EventKind::ALL.to_vec(),
                after,
                limit: BATCH_EVENTS,
                bytes: BATCH_BYTES,
            };
            let page = store.read_events(query).await?;
            let more = page.more;
            if page.examined_to > after {
                let upto = page.examined_to;
                self.lock().append(page);
                self.0.newest.send_replace(upto);
            }
            if !more {
                return Ok(());
            }
        }
        // There was no subscriber for long, or events arrive too fast: each reader then reads the store at its own
        // pace.
        self.skip_to_newest(store).await
    }

    /// Empties the buffer and continues after the newest event.
    async fn skip_to_newest(&self, store: &dyn EventStore) -> skep_store::Result<()> {
        let newest = store.event_span(EventScope::All).await?.newest;
        *self.lock() = Buffer { from: newest, to: newest, ..Buffer::default() };
        self.0.newest.send_replace(newest);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.0.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    fn append(&mut self, page: EventPage) {
        for event in &page.events {
            let buffered = BufferedEvent::of(event);
            self.bytes += buffered.frame.len();
            self.events.push_back(buffered);
        }
        self.to = page.examined_to;
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.frame.len();
            self.from = oldest.sequence;
        }
    }

    fn after(&self, sequence: u64, filter: &EventFilter) -> Option<ReaderBatch> {
        if sequence < self.from {
            return None;
        }
        let first = self.events.partition_point(|event| event.sequence <= sequence);
        let (mut frames, mut bytes) = (Vec::new(), 0);
        for event in
            self.events.range(first..).filter(|event| filter.matches(event.account, event.ticket, event.kind))
        {
            if frames.len() >= READER_FRAMES || bytes >= READER_BYTES {
                return Some(ReaderBatch { frames, upto: event.sequence - 1 });
            }
            bytes += event.frame.len();
            frames.push(event.frame.clone());
        }
        Some(ReaderBatch { frames, upto: self.to.max(sequence) })
    }
}

impl BufferedEvent {
    fn of(event: &Event) -> Self {
        let Event { sequence, account, kind, ticket, .. } = *event;
        Self { sequence, account, kind, ticket, frame: frame::event(event) }
    }
}
