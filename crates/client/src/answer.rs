//! An answer, both as a value and as the text that the server sent.

use std::ops::Deref;

use bytes::Bytes;

/// An answer: the value, and the JSON that it was read from.
#[derive(Debug, Clone)]
pub struct Answered<T> {
    /// What the server said.
    pub value: T,
    /// The same as it came, fields included that this client does not know.
    pub text: Bytes,
}

impl<T> Deref for Answered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
