//! Tracks the requests of a connection, to decide which timeout applies and which request is the last one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use crate::error::HeadRefusal;

/// The state of the requests and answers of one connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Exchanges(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    in_progress: usize,
    started: u64,
    idle_since: Instant,
    /// The number of the last request that the connection accepts, once it is known, and the reason.
    last: Option<(u64, LastReason)>,
    /// Whether the body of the latest request was not read to its end.
    is_unread: bool,
    /// The connection was upgraded to another protocol, which has its own timeouts.
    upgraded: bool,
    /// The parts of answers that are not sent yet, by the number of the request.
    unsent: HashMap<u64, UnsentParts>,
}

#[derive(Debug)]
struct UnsentParts {
    count: usize,
    /// When the first of them was given to the HTTP library, or a part was sent.
    since: Instant,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Activity {
    /// No request has been in progress since then.
    Idle(Instant),
    /// Requests are in progress. Since the given time, no part of an answer was sent.
    Busy(Option<Instant>),
    /// The connection no longer speaks HTTP.
    Upgraded,
}

/// Why a request is the last of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastReason {
    /// Its head was refused, and the HTTP library was given a substitute request.
    Refused(HeadRefusal),
    /// Only the HTTP library can find the end of its body, so a following request could not be checked.
    Unframed,
}

impl Exchanges {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            in_progress: 0,
            started: 0,
            idle_since: Instant::now(),
            last: None,
            is_unread: false,
            upgraded: false,
            unsent: HashMap::new(),
        })))
    }

    pub(super) fn activity(&self) -> Activity {
        let state = self.state();
        match state.in_progress {
            _ if state.upgraded => Activity::Upgraded,
            0 => Activity::Idle(state.idle_since),
            _ => Activity::Busy(state.unsent.values().map(|parts| parts.since).min()),
        }
    }

    /// Marks a request as the connection's last, before it is passed to the HTTP library. The first one has number 1.
    pub(super) fn set_last(&self, number: u64, last: LastReason) {
        self.state().last = Some((number, last));
    }

    /// Why the connection accepts no request after this one; `None` where it does.
    pub(super) fn last(&self, number: u64) -> Option<LastReason> {
        self.state().last.filter(|(last, _)| number >= *last).map(|(_, why)| why)
    }

    /// Sets whether the body of the request that was just answered was not read to its end.
    pub(super) fn set_unread(&self, is_unread: bool) {
        self.state().is_unread = is_unread;
    }

    /// Whether the client may still send data that will not be read.
    pub(super) fn is_unread(&self) -> bool {
        let state = self.state();
        state.is_unread || matches!(state.last, Some((_, LastReason::Refused(_))))
    }

    /// Marks the connection as upgraded to another protocol.
    pub(super) fn upgrade(&self) {
        self.state().upgraded = true;
    }

    /// Registers the next request. On HTTP/1.1, requests arrive here in the order of their heads.
    pub(super) fn begin(&self) -> Exchange {
        let mut state = self.state();
        state.in_progress += 1;
        state.started += 1;
        Exchange { exchanges: self.clone(), number: state.started }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request, until its answer is sent or dropped.
#[derive(Debug)]
pub(super) struct Exchange {
    exchanges: Exchanges,
    /// The number of the request on its connection, counted from 1.
    pub(super) number: u64,
}

impl Exchange {
    /// Records that a part of the answer was given to the HTTP library.
    pub(super) fn part_given(&self) {
        let mut state = self.exchanges.state();
        let parts = state.unsent.entry(self.number);
        parts.or_insert_with(|| UnsentParts { count: 0, since: Instant::now() }).count += 1;
    }

    /// Records that a part was sent or dropped.
    pub(super) fn part_sent(&self) {
        let mut state = self.exchanges.state();
        let Some(parts) = state.unsent.get_mut(&self.number) else { return };
        parts.count -= 1;
        parts.since = Instant::now();
        if parts.count == 0 {
            state.unsent.remove(&self.number);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut state = self.exchanges.state();
        state.unsent.remove(&self.number);
        state.in_progress -= 1;
        state.idle_since = Instant::now();
    }
}
