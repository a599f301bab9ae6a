//! The health of the store.

use std::time::Duration;

use async_trait::async_trait;

use crate::Result;

/// The methods of a [`Store`](crate::Store) for health checks.
#[async_trait]
#[warn(missing_docs)]
pub trait HealthStore: Send + Sync {
    /// Checks that the store executes commands and queries; fails with `Unavailable` if that takes longer than `limit`.
    async fn ping(&self, limit: Duration) -> Result<()>;
}
