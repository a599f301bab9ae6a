//! Calls that wait for work. A signal wakes them; nobody asks again and again.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::AccountId;
use skep_store::{Store, TicketNews};
use tokio::sync::{Notify, broadcast::error::RecvError};

/// Those who wait, by account.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiters(Arc<Mutex<HashMap<AccountId, Arc<Notify>>>>);

impl Waiters {
    /// The signal of an account.
    pub(crate) fn of(&self, account: AccountId) -> Arc<Notify> {
        let mut signals = self.lock();
        // Accounts that nobody waits for are forgotten here, so that those that come and go leave nothing.
        signals.retain(|_, signal| Arc::strong_count(signal) > 1);
        Arc::clone(signals.entry(account).or_default())
    }

    /// Wakes whoever waits for what the store tells, for ever.
    pub(crate) async fn wake(&self, store: &dyn Store) -> Infallible {
        let mut news = store.ticket_news();
        loop {
            match news.recv().await {
                Ok(TicketNews::Ready(account)) => {
                    let signal = self.lock().get(&account).cloned();
                    signal.iter().for_each(|signal| signal.notify_waiters());
                }
                Ok(_) => {}
                // Whatever was missed may have been theirs.
                Err(RecvError::Lagged(_)) => self.lock().values().for_each(|signal| signal.notify_waiters()),
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
