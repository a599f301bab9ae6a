//! Memory for answers of a guest.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use skep_api::{AnswerLimit, Failure};

/// The size up to which answers are read without a reservation, in bytes: the limit of short answers.
pub(super) const MAX_UNRESERVED_BYTES: usize = AnswerLimit::SHORT.bytes;

/// Limits the memory that concurrent answers of guests take. A guest cannot send the rest of a long answer until its memory is
/// reserved.
pub trait AnswerMemory: Debug + Send + Sync {
    /// Waits until an answer of this many bytes may be read. The implementation decides when the memory is released.
    ///
    /// # Errors
    /// No memory became available in time. The answer is discarded.
    fn reserve(&self, bytes: u64) -> BoxFuture<'_, Result<(), Failure>>;
}
