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
    /// Requests whose client has not yet taken the latest part of the answer, and since when.
    untaken: HashMap<u64, Instant>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Activity {
    /// No request has been in progress since then.
    Idle(Instant),
    /// Requests are in progress. Since the given time, the client has not taken a part of an answer.
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
            untaken: HashMap::new(),
        })))
    }

    pub(super) fn activity(&self) -> Activity {
        let state = self.state();
        match state.in_progress {
            _ if state.upgraded => Activity::Upgraded,
            0 => Activity::Idle(state.idle_since),
            _ => Activity::Busy(state.untaken.values().min().copied()),
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
    /// Records that a part of the answer was given to the client.
    pub(super) fn part_given(&self) {
        self.exchanges.state().untaken.insert(self.number, Instant::now());
    }

    /// Records that the client has taken the latest part.
    pub(super) fn part_taken(&self) {
        self.exchanges.state().untaken.remove(&self.number);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut state = self.exchanges.state();
        state.untaken.remove(&self.number);
        state.in_progress -= 1;
        state.idle_since = Instant::now();
    }
}
