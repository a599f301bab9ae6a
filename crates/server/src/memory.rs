//! A budget of memory for large bodies and answers, shared by all requests.
//!
//! A request reserves memory before it allocates it, so waiting requests hold nothing. The memory is released once the
//! answer is sent or aborted. One account cannot reserve the whole budget, so that other accounts are still served.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use axum::body::Body;
use futures_util::future::BoxFuture;
use skep_api::{AccountId, AnswerLimit, ErrorCode, Failure};
use skep_channel::AnswerMemory;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::answer_body::keep_to_end;

/// Bodies up to this size reserve nothing, in bytes: about what a connection takes without one.
pub(crate) const SMALL_BODY_BYTES: u64 = 16 << 10;
/// Answers up to this size reserve nothing, in bytes: those about a single thing.
const SMALL_ANSWER_BYTES: u64 = AnswerLimit::SHORT.bytes as u64;
/// What all requests may reserve together, in bytes.
const TOTAL_BYTES: u64 = 224 << 20;
/// What the requests of one account may reserve together, in bytes.
const ACCOUNT_BYTES: u64 = 128 << 20;
/// The most that one request reserves, in bytes: enough for a body of 48 MiB.
const MAX_REQUEST_BYTES: u64 = 96 << 20;
/// Bytes per permit of the semaphores.
const PERMIT_BYTES: u64 = 16 << 10;
/// How long a request waits for memory.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

const _: () = assert!(ACCOUNT_BYTES >= MAX_REQUEST_BYTES && TOTAL_BYTES - ACCOUNT_BYTES >= MAX_REQUEST_BYTES);

/// The shared budget. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct MemoryBudget {
    total: Arc<Semaphore>,
    accounts: Arc<Mutex<HashMap<AccountId, Weak<Semaphore>>>>,
    wait_limit: Duration,
}

/// The reservation of one request. Cheap to clone; dropping the last clone releases it.
#[derive(Debug, Clone)]
pub(crate) struct RequestMemory {
    shared: MemoryBudget,
    account: AccountId,
    reserved: Arc<Mutex<Option<Reserved>>>,
}

#[derive(Debug)]
struct Reserved {
    of_account: OwnedSemaphorePermit,
    of_whole: OwnedSemaphorePermit,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        let whole = Arc::new(Semaphore::new(permits(TOTAL_BYTES) as usize));
        Self { total: whole, accounts: Arc::default(), wait_limit: WAIT_LIMIT }
    }
}

impl MemoryBudget {
    /// An empty reservation for a request of an account.
    pub(crate) fn for_request(&self, account: AccountId) -> RequestMemory {
        RequestMemory { shared: self.clone(), account, reserved: Arc::default() }
    }

    fn of_account(&self, account: AccountId) -> Arc<Semaphore> {
        let mut accounts = lock(&self.accounts);
        if let Some(found) = accounts.get(&account).and_then(Weak::upgrade) {
            return found;
        }
        accounts.retain(|_, semaphore| semaphore.strong_count() > 0);
        let made = Arc::new(Semaphore::new(permits(ACCOUNT_BYTES) as usize));
        accounts.insert(account, Arc::downgrade(&made));
        made
    }
}

impl RequestMemory {
    /// Raises the reservation to this many bytes for an answer, unless it is small, and waits while other requests hold too
    /// much.
    ///
    /// # Errors
    /// `overloaded` after [`WAIT_LIMIT`].
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<(), Failure> {
        if bytes <= SMALL_ANSWER_BYTES { Ok(()) } else { self.raise(bytes).await }
    }

    /// Reserves this many bytes for a body that is not small, and waits while other requests hold too much.
    ///
    /// # Errors
    /// `overloaded` after [`WAIT_LIMIT`].
    pub(crate) async fn reserve_body(&self, bytes: u64) -> Result<(), Failure> {
        self.raise(bytes).await
    }

    async fn raise(&self, bytes: u64) -> Result<(), Failure> {
        let permits = permits(bytes.min(MAX_REQUEST_BYTES));
        {
            let mut reserved = lock(&self.reserved);
            if reserved.as_ref().is_some_and(|held| held.of_whole.num_permits() >= permits as usize) {
                return Ok(());
            }
            // It is released first: two requests that each held a part and waited for more would deadlock.
            *reserved = None;
        }
        let waiting = async {
            let of_account = self.shared.of_account(self.account).acquire_many_owned(permits).await.ok()?;
            let of_whole = Arc::clone(&self.shared.total).acquire_many_owned(permits).await.ok()?;
            Some(Reserved { of_account, of_whole })
        };
        let reserved = timeout(self.shared.wait_limit, waiting).await.ok().flatten();
        *lock(&self.reserved) = Some(reserved.ok_or_else(|| {
            let message = "the large requests and answers under way take all the memory that they may; try again, or ask for less";
            Failure::new(ErrorCode::Overloaded, message)
        })?);
        Ok(())
    }

    /// Raises a reservation to this many bytes for a body that has taken what was reserved before, and waits for nothing: the
    /// body stays in memory.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn extend_body(&self, bytes: u64) -> Result<(), Failure> {
        let permits = permits(bytes.min(MAX_REQUEST_BYTES));
        let mut reserved = lock(&self.reserved);
        let held = reserved.as_ref().map_or(0, |held| held.of_whole.num_permits());
        let missing = permits.saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        let more = self.try_reserve(missing).ok_or_else(|| {
            let message = "the large requests and answers under way take all the memory that they may; try again, or send the body \
                           with a `Content-Length`, so that it can wait for memory";
            Failure::new(ErrorCode::Overloaded, message)
        })?;
        match reserved.as_mut() {
            Some(held) => {
                held.of_account.merge(more.of_account);
                held.of_whole.merge(more.of_whole);
            }
            None => *reserved = Some(more),
        }
        Ok(())
    }

    fn try_reserve(&self, permits: u32) -> Option<Reserved> {
        let of_account = self.shared.of_account(self.account).try_acquire_many_owned(permits).ok()?;
        let of_whole = Arc::clone(&self.shared.total).try_acquire_many_owned(permits).ok()?;
        Some(Reserved { of_account, of_whole })
    }

    /// The reservation for the answers of a guest.
    pub(crate) fn for_answers(&self) -> Arc<dyn AnswerMemory> {
        Arc::new(self.clone())
    }

    /// Attaches the reservation to the body of an answer, so that it lasts until the body's end.
    pub(crate) fn attach_to(self, body: Body) -> Body {
        let is_reserved = lock(&self.reserved).is_some();
        if is_reserved { keep_to_end(body, self) } else { body }
    }
}

impl AnswerMemory for RequestMemory {
    fn reserve(&self, bytes: u64) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(Self::reserve(self, bytes))
    }
}

fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}

/// Locks a mutex, also a poisoned one: it guards single assignments, so the value is valid after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn waits(memory: &RequestMemory, bytes: u64) -> bool {
        memory.reserve(bytes).now_or_never().is_none()
    }

    #[tokio::test]
    async fn an_account_that_takes_all_it_may_leaves_room_for_the_largest_request_of_another() {
        let shared = MemoryBudget::default();
        let (one, other) = (AccountId::generate(), AccountId::generate());
        let held: Vec<_> = (0..4).map(|_| shared.for_request(one)).collect();
        for memory in &held {
            memory.reserve(32 * MIB).await.unwrap();
        }
        assert!(waits(&shared.for_request(one), 2 * MIB));
        assert!(!waits(&shared.for_request(one), SMALL_ANSWER_BYTES));
        assert!(!waits(&shared.for_request(other), MAX_REQUEST_BYTES));
        drop(held);
        assert!(!waits(&shared.for_request(one), ACCOUNT_BYTES));
        assert_eq!(lock(&shared.accounts).len(), 1, "accounts that reserve nothing are forgotten");
    }

    #[tokio::test]
    async fn requests_that_reserve_more_do_not_wait_for_each_other() {
        let shared = MemoryBudget::default();
        let account = AccountId::generate();
        let requests: Vec<_> = (0..4).map(|_| shared.for_request(account)).collect();
        for request in &requests {
            request.reserve(32 * MIB).await.unwrap();
        }
        let more = requests.iter().map(|request| async move {
            request.reserve(64 * MIB).await.unwrap();
            lock(&request.reserved).take();
        });
        futures_util::future::join_all(more).await;
        assert_eq!(shared.total.available_permits(), permits(TOTAL_BYTES) as usize);
    }

    #[tokio::test]
    async fn a_request_that_waits_too_long_is_refused() {
        let shared = MemoryBudget { wait_limit: Duration::from_millis(1), ..MemoryBudget::default() };
        let account = AccountId::generate();
        let held = shared.for_request(account);
        held.reserve(MAX_REQUEST_BYTES).await.unwrap();
        let refused = shared.for_request(account).reserve(MAX_REQUEST_BYTES).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
    }

    #[tokio::test]
    async fn a_body_that_grows_waits_for_nothing() {
        let shared = MemoryBudget::default();
        let all = shared.total.available_permits();
        let account = AccountId::generate();
        let body = shared.for_request(account);
        body.reserve_body(MIB).await.unwrap();
        body.extend_body(2 * MIB).unwrap();
        // An answer of that size needs no more.
        body.reserve(2 * MIB).await.unwrap();
        let held = shared.for_request(account);
        held.reserve_body(96 * MIB).await.unwrap();
        assert!(shared.total.available_permits() < all);
        let refused = body.extend_body(64 * MIB).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        drop(held);
        body.extend_body(64 * MIB).unwrap();
        assert_eq!(all - shared.total.available_permits(), permits(64 * MIB) as usize);
        drop(body);
        assert_eq!(shared.total.available_permits(), all);
    }

    #[tokio::test]
    async fn an_answer_keeps_its_memory_to_its_end() {
        let shared = MemoryBudget::default();
        let all = shared.total.available_permits();
        let memory = shared.for_request(AccountId::generate());
        memory.reserve(2 * MIB).await.unwrap();
        let body = memory.attach_to(Body::from("answer"));
        assert!(shared.total.available_permits() < all);
        axum::body::to_bytes(body, 100).await.unwrap();
        assert_eq!(shared.total.available_permits(), all);
    }
}
