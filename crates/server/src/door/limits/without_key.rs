//! Limits the requests of a connection for routes that need no key, until one of its requests has a valid key.
//!
//! HTTP/2 lets a connection begin hundreds of requests at once.

use std::{sync::Arc, time::Duration};

use skep_api::ErrorCode;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError},
    time::timeout,
};

use crate::error::Refusal;

/// Requests of a connection under way at the same time.
const MAX_REQUESTS: usize = 16;
/// Requests of a connection that wait.
const MAX_WAITING: usize = 48;
/// How long a request waits, for the end of another one or for a valid key.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Counts the requests of a connection. An extension of each request; clones share the count.
#[derive(Debug, Clone)]
pub(crate) struct RequestsWithoutKey {
    under_way: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl RequestsWithoutKey {
    pub(crate) fn limited() -> Self {
        let [under_way, waiting] =
            [MAX_REQUESTS, MAX_WAITING].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { under_way, waiting }
    }

    /// For the connection of a trusted proxy, which carries the requests of many callers.
    pub(crate) fn unlimited() -> Self {
        let requests = Self::limited();
        requests.end_limit();
        requests
    }

    /// Ends the limit of this connection, because a request had a valid key.
    pub(crate) fn end_limit(&self) {
        self.under_way.close();
    }

    /// Counts a request until the permit is dropped. `None` where the connection has no limit. At the limit, some requests with a
    /// short body or none wait, as a browser requests many files of a page at once. The others are refused at once.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) async fn count(&self, is_short: bool) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let running = || Arc::clone(&self.under_way);
        match running().try_acquire_owned() {
            Ok(permit) => return Ok(Some(permit)),
            Err(TryAcquireError::Closed) => return Ok(None),
            Err(TryAcquireError::NoPermits) => {}
        }
        let waiting = if is_short { self.waiting.try_acquire().ok() } else { None };
        if waiting.is_some()
            && let Ok(permit) = timeout(WAIT_LIMIT, running().acquire_owned()).await
        {
            // A closed semaphore gives no permit.
            return Ok(permit.ok());
        }
        let message = format!(
            "{MAX_REQUESTS} requests of this connection are under way, as many as may be at the same time without a valid key; try \
             again when some of them have ended"
        );
        Err(Refusal::new(ErrorCode::Overloaded, message))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, future::join_all};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_request_more_waits_until_another_has_ended() {
        let requests = RequestsWithoutKey::limited();
        let mut under_way = join_all((0..MAX_REQUESTS).map(|_| requests.count(true))).await;
        assert!(under_way.iter().all(|permit| matches!(permit, Ok(Some(_)))));
        let mut next = Box::pin(requests.count(true));
        assert!((&mut next).now_or_never().is_none());
        drop(under_way.pop());
        let next = next.await.unwrap();
        assert!(next.is_some());
        requests.count(false).await.unwrap_err();
        requests.count(true).await.unwrap_err();
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(requests.count(true))).collect();
        assert!(waiting.iter_mut().all(|request| request.now_or_never().is_none()));
        requests.count(true).now_or_never().unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn a_valid_key_ends_the_limit_for_those_that_wait_too() {
        let requests = RequestsWithoutKey::limited();
        let under_way = join_all((0..MAX_REQUESTS).map(|_| requests.count(true))).await;
        let mut next = Box::pin(requests.count(true));
        assert!((&mut next).now_or_never().is_none());
        requests.end_limit();
        assert!(next.await.unwrap().is_none());
        assert!(requests.count(true).now_or_never().unwrap().unwrap().is_none());
        drop(under_way);
        assert!(RequestsWithoutKey::unlimited().count(false).now_or_never().unwrap().unwrap().is_none());
    }
}
