//! Memory for answers of a guest.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use skep_api::{AnswerLimit, Failure};

/// Answers up to this size are read without a reservation, in bytes: those about a single thing.
pub(super) const MAX_UNRESERVED_BYTES: usize = AnswerLimit::SHORT.bytes;

/// Reserves memory for answers, so that what many guests answer at the same time is limited. A guest that has more to send waits
/// meanwhile.
pub trait AnswerMemory: Debug + Send + Sync {
    /// Waits until there is memory for an answer of this many bytes. Its owner decides when it is free again.
    ///
    /// # Errors
    /// There is none for too long. The answer is lost.
    fn reserve(&self, bytes: u64) -> BoxFuture<'_, Result<(), Failure>>;
}
