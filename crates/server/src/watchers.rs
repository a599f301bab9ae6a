//! Limits the number of folders that each account watches.

use skep_accounts::{AccountPermit, AccountPermits};
use skep_api::{AccountId, ErrorCode, Failure};

/// Maximum number of folders watched by one account, on the server and in its VMs. By default, the kernel allows 128
/// inotify instances per user.
const MAX_WATCHED: usize = 32;

/// The number of watched folders of each account. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct WatchCounts(AccountPermits);

impl Default for WatchCounts {
    fn default() -> Self {
        Self(AccountPermits::new(MAX_WATCHED))
    }
}

impl WatchCounts {
    /// Takes a permit of the account to watch one folder.
    ///
    /// # Errors
    /// `watch_limit` where the account has none left.
    pub(crate) fn acquire(&self, account: AccountId) -> Result<AccountPermit, Failure> {
        self.0.acquire(account).ok_or_else(|| {
            let message =
                format!("this account watches {MAX_WATCHED} folders already; end one of these streams first");
            Failure::new(ErrorCode::WatchLimit, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_watches_a_limited_number_of_folders() {
        let (watchers, account) = (WatchCounts::default(), AccountId::generate());
        let held: Vec<_> = (0..MAX_WATCHED).map(|_| watchers.acquire(account).unwrap()).collect();
        assert_eq!(watchers.acquire(account).unwrap_err().code, ErrorCode::WatchLimit);
        drop(held);
        assert!(watchers.acquire(account).is_ok());
    }
}
