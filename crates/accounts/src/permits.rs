//! Permits of which each account holds a limited number, so that one cannot take all of what accounts share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::AccountId;

/// The numbers of permits that accounts hold. Cheap to clone; clones share them.
#[derive(Debug, Clone)]
pub struct AccountPermits {
    max_of_account: usize,
    held: Arc<Mutex<HashMap<AccountId, usize>>>,
}

/// A permit of an account, released on drop.
#[derive(Debug)]
#[must_use]
pub struct AccountPermit {
    all: AccountPermits,
    account: AccountId,
}

impl AccountPermits {
    /// Allows each account to hold this number of permits at a time.
    pub fn new(max_of_account: usize) -> Self {
        Self { max_of_account, held: Arc::default() }
    }

    /// Takes a permit. `None` if the account has none left.
    pub fn acquire(&self, account: AccountId) -> Option<AccountPermit> {
        let mut held = self.lock();
        let count = held.get(&account).copied().unwrap_or_default();
        if count >= self.max_of_account {
            return None;
        }
        held.insert(account, count + 1);
        drop(held);
        Some(AccountPermit { all: self.clone(), account })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AccountPermit {
    fn drop(&mut self) {
        let mut held = self.all.lock();
        if let Some(count) = held.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_counted_per_account_and_released() {
        const MAX: usize = 3;
        let (permits, one, other) = (AccountPermits::new(MAX), AccountId::generate(), AccountId::generate());
        let mut held: Vec<_> = (0..MAX).map(|_| permits.acquire(one).unwrap()).collect();
        assert!(permits.clone().acquire(one).is_none());
        assert!(permits.acquire(other).is_some());
        held.pop();
        held.push(permits.acquire(one).unwrap());
        assert!(permits.acquire(one).is_none());
        drop(held);
        assert!(permits.lock().is_empty());
    }
}
