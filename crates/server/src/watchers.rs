//! Limits the number of folders that each account watches.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use skep_api::{AccountId, ErrorCode, Failure};

/// Maximum number of folders watched by one account, on the server and in its VMs. By default, the kernel allows 128
/// inotify instances per user.
const MOST: usize = 32;

/// The number of watched folders of each account. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watchers(Arc<Mutex<HashMap<AccountId, usize>>>);

/// A permit to watch one folder, released on drop.
#[derive(Debug)]
pub(crate) struct Watcher {
    all: Watchers,
    account: AccountId,
}

impl Watchers {
    /// Takes a permit of the account.
    ///
    /// # Errors
    /// `watch_limit` where the account has none left.
    pub(crate) fn enter(&self, account: AccountId) -> Result<Watcher, Failure> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(account).or_default();
        if *count >= MOST {
            let message =
                format!("this account watches {MOST} folders already; end one of these streams first");
            return Err(Failure::new(ErrorCode::WatchLimit, message));
        }
        *count += 1;
        Ok(Watcher { all: self.clone(), account })
    }
}

impl Drop for Watcher {
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
    fn each_account_has_its_places_and_gets_them_back() {
        let (watchers, one, other) = (Watchers::default(), AccountId::generate(), AccountId::generate());
        let mut held: Vec<_> = (0..MOST).map(|_| watchers.enter(one).unwrap()).collect();
        assert_eq!(watchers.enter(one).unwrap_err().code, ErrorCode::WatchLimit);
        assert!(watchers.enter(other).is_ok());
        held.pop();
        held.push(watchers.enter(one).unwrap());
        assert!(watchers.enter(one).is_err());
        drop(held);
        assert!(watchers.0.lock().unwrap().is_empty());
    }
}
