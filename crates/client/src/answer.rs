//! Answers, both as a value and as the JSON that the server sent.

use std::ops::Deref;

use bytes::Bytes;

/// An answer: the parsed value, and the JSON that it was parsed from.
#[derive(Debug, Clone)]
pub struct Answered<T> {
    /// The parsed answer.
    pub value: T,
    /// The JSON as received, including fields that this client does not know.
    pub text: Bytes,
}

impl<T> Deref for Answered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
