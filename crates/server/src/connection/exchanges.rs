//! What a connection's requests are doing, so that its silence can be judged, and which of them is its last.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use crate::error::HeadRefusal;

/// The requests of one connection and their answers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Exchanges(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    under_way: usize,
    begun: u64,
    quiet_since: Instant,
    /// The last request that the connection takes, by its number, once that is known.
    last: Option<(u64, Last)>,
    /// Whether the body of the latest request was not read to its end.
    is_unread: bool,
    /// Another protocol is spoken on it now, with times of its own.
    upgraded: bool,
    /// Answers whose next part waits for room, and since when.
    held: HashMap<u64, Instant>,
}

/// How a connection stands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Standing {
    /// No request is under way since then.
    Quiet(Instant),
    /// Requests are under way. The caller leaves an answer unread since then.
    Busy(Option<Instant>),
    /// It is HTTP no more.
    Upgraded,
}

/// Why a request is the last of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// Its head was refused, and the HTTP library got a request of ours in its place.
    Refused(HeadRefusal),
    /// Where its body ends only the HTTP library knows: what follows was not looked at as a request's beginning.
    Unframed,
}

impl Exchanges {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            under_way: 0,
            begun: 0,
            quiet_since: Instant::now(),
            last: None,
            is_unread: false,
            upgraded: false,
            held: HashMap::new(),
        })))
    }

    pub(super) fn standing(&self) -> Standing {
        let state = self.state();
        match state.under_way {
            _ if state.upgraded => Standing::Upgraded,
            0 => Standing::Quiet(state.quiet_since),
            _ => Standing::Busy(state.held.values().min().copied()),
        }
    }

    /// Marks a request as the connection's last, before it is handed to the HTTP library. The first has number 1.
    pub(super) fn end_with(&self, number: u64, last: Last) {
        self.state().last = Some((number, last));
    }

    /// Why the connection takes no other request than those up to this one; `None` where it does.
    pub(super) fn last(&self, number: u64) -> Option<Last> {
        self.state().last.filter(|(last, _)| number >= *last).map(|(_, why)| why)
    }

    /// Whether the body of the request that was just answered is left before its end.
    pub(super) fn leave_unread(&self, is_unread: bool) {
        self.state().is_unread = is_unread;
    }

    /// Whether there is more to come that will not be read.
    pub(super) fn is_unread(&self) -> bool {
        let state = self.state();
        state.is_unread || matches!(state.last, Some((_, Last::Refused(_))))
    }

    /// The connection speaks another protocol from now on.
    pub(super) fn upgrade(&self) {
        self.state().upgraded = true;
    }

    /// The next request. On HTTP/1.1 they come in the order of their heads.
    pub(super) fn begin(&self) -> Exchange {
        let mut state = self.state();
        state.under_way += 1;
        state.begun += 1;
        Exchange { exchanges: self.clone(), number: state.begun }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request, until its answer is handed over or given up.
#[derive(Debug)]
pub(super) struct Exchange {
    exchanges: Exchanges,
    /// Counted from 1.
    pub(super) number: u64,
}

impl Exchange {
    /// The caller is asked to read a part of the answer.
    pub(super) fn hold(&self) {
        self.exchanges.state().held.insert(self.number, Instant::now());
    }

    /// The caller has read what it was asked to.
    pub(super) fn release(&self) {
        self.exchanges.state().held.remove(&self.number);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut state = self.exchanges.state();
        state.held.remove(&self.number);
        state.under_way -= 1;
        state.quiet_since = Instant::now();
    }
}
