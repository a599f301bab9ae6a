//! Limits the captures of each account and of all accounts. All accounts share those of the keeper, and one of them cannot take
//! all.

use std::sync::Arc;

use skep_accounts::{AccountPermit, AccountPermits};
use skep_api::{AccountId, ErrorCode, Failure};
use skep_keeper_protocol::MAX_CAPTURES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Captures of one account at the same time.
const MAX_OF_ACCOUNT: usize = MAX_CAPTURES / 2;

/// The captures of each account, and those of all accounts. Cheap to clone; clones share the counts.
#[derive(Debug, Clone)]
pub(crate) struct CaptureCounts {
    of_accounts: AccountPermits,
    /// The keeper counts them too, but what it refuses is hidden from callers.
    free: Arc<Semaphore>,
}

/// A permit for one capture, released on drop.
#[derive(Debug)]
#[must_use]
pub(crate) struct CapturePermit {
    _of_account: AccountPermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for CaptureCounts {
    fn default() -> Self {
        Self {
            of_accounts: AccountPermits::new(MAX_OF_ACCOUNT),
            free: Arc::new(Semaphore::new(MAX_CAPTURES)),
        }
    }
}

impl CaptureCounts {
    /// Takes a permit of the account for one capture. Keep it until the keeper has dropped the capture.
    ///
    /// # Errors
    /// `no_capacity` where the account has none left, or all accounts together have none left.
    pub(crate) fn acquire(&self, account: AccountId) -> Result<CapturePermit, Failure> {
        let of_account = self.of_accounts.acquire(account).ok_or_else(|| {
            let message = format!(
                "{MAX_OF_ACCOUNT} VMs of this account are being copied already, for forks, snapshots or pauses to disk, and \
                 no account may have more at a time; try again when one of them is done"
            );
            Failure::new(ErrorCode::NoCapacity, message)
        })?;
        // The semaphore is never closed, so this fails only if no permit is left.
        let of_all = Arc::clone(&self.free).try_acquire_owned().map_err(|_| {
            let message = format!(
                "{MAX_CAPTURES} VMs of this server are being copied already, for forks, snapshots or pauses to disk of all \
                 accounts, and there may not be more at a time; try again when one of them is done"
            );
            Failure::new(ErrorCode::NoCapacity, message)
        })?;
        Ok(CapturePermit { _of_account: of_account, _of_all: of_all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_leaves_half_of_the_captures_to_others() {
        let (counts, one, other) = (CaptureCounts::default(), AccountId::generate(), AccountId::generate());
        let acquire = |account| -> Vec<CapturePermit> {
            (0..MAX_CAPTURES / 2).map(|_| counts.acquire(account).unwrap()).collect()
        };
        let held = acquire(one);
        let refused = counts.acquire(one).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoCapacity);
        for part in ["32 VMs of this account", "try again when"] {
            assert!(refused.message.contains(part), "{refused}");
        }
        drop(acquire(other));
        drop(held);
        assert!(counts.acquire(one).is_ok());
    }

    #[test]
    fn the_refusal_names_the_captures_of_all_accounts_once_they_are_taken() {
        let (counts, other) = (CaptureCounts::default(), AccountId::generate());
        let mut held = Vec::new();
        for account in [AccountId::generate(), AccountId::generate()] {
            held.extend((0..MAX_OF_ACCOUNT).map(|_| counts.acquire(account).unwrap()));
        }
        // As a caller gets it.
        let refused = Failure::from(crate::Error::from(counts.acquire(other).unwrap_err()));
        assert_eq!(refused.code, ErrorCode::NoCapacity);
        for part in ["64 VMs of this server", "forks, snapshots or pauses", "try again when"] {
            assert!(refused.message.contains(part), "{refused}");
        }
        held.pop();
        // The refusal also returned the permit of the account.
        held.push(counts.acquire(other).unwrap());
        assert!(counts.acquire(other).is_err());
        drop(held);
        let all: Vec<CapturePermit> = (0..MAX_OF_ACCOUNT).map(|_| counts.acquire(other).unwrap()).collect();
        assert_eq!(all.len(), MAX_OF_ACCOUNT);
    }
}
