//! Signals that wake claims which wait for a ready ticket, so that they need not poll the store.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::AccountId;
use skep_store::{TicketSignal, TicketStore};
use tokio::sync::{Notify, broadcast::error::RecvError};

/// One signal for each account with waiting claims.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiters(Arc<Mutex<HashMap<AccountId, Arc<Notify>>>>);

impl Waiters {
    /// The signal of an account.
    pub(crate) fn signal(&self, account: AccountId) -> Arc<Notify> {
        let mut signals = self.lock();
        // Signals without a waiting claim are dropped here, so that the map does not grow with every account.
        signals.retain(|_, signal| Arc::strong_count(signal) > 1);
        Arc::clone(signals.entry(account).or_default())
    }

    /// Wakes the waiting claims of an account when the store reports a ready ticket, until it is dropped.
    pub(crate) async fn run(&self, store: &dyn TicketStore) -> Infallible {
        let mut signals = store.ticket_signals();
        loop {
            match signals.recv().await {
                Ok(TicketSignal::Ready(account)) => {
                    let signal = self.lock().get(&account).cloned();
                    signal.iter().for_each(|signal| signal.notify_waiters());
                }
                Ok(_) => {}
                // Missed notifications may concern any account.
                Err(RecvError::Lagged(_)) => self.lock().values().for_each(|signal| signal.notify_waiters()),
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
