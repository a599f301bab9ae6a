//! Limits the number of folders that each account watches.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use skep_api::{AccountId, ErrorCode, Failure};

/// Maximum number of folders watched by one account, on the server and in its VMs. By default, the kernel allows 128
/// inotify instances per user.
const MAX_WATCHED: usize = 32;

/// The number of watched folders of each account. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchCounts(Arc<Mutex<HashMap<AccountId, usize>>>);

/// A permit to watch one folder, released on drop.
#[derive(Debug)]
pub(crate) struct WatchPermit {
    all: WatchCounts,
    account: AccountId,
}

impl WatchCounts {
    /// Takes a permit of the account.
    ///
    /// # Errors
    /// `watch_limit` where the account has none left.
    pub(crate) fn acquire(&self, account: AccountId) -> Result<WatchPermit, Failure> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(account).or_default();
        if *count >= MAX_WATCHED {
            let message =
                format!("this account watches {MAX_WATCHED} folders already; end one of these streams first");
            return Err(Failure::new(ErrorCode::WatchLimit, message));
        }
        *count += 1;
        Ok(WatchPermit { all: self.clone(), account })
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_counted_per_account_and_released() {
        let (watchers, one, other) = (WatchCounts::default(), AccountId::generate(), AccountId::generate());
        let mut held: Vec<_> = (0..MAX_WATCHED).map(|_| watchers.acquire(one).unwrap()).collect();
        assert_eq!(watchers.acquire(one).unwrap_err().code, ErrorCode::WatchLimit);
        assert!(watchers.acquire(other).is_ok());
        held.pop();
        held.push(watchers.acquire(one).unwrap());
        assert!(watchers.acquire(one).is_err());
        drop(held);
        assert!(watchers.0.lock().unwrap().is_empty());
    }
}
