//! What a command printed: all of it, or its beginning and its end.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The longest output that is kept whole, which may be a result of its own.
const WHOLE: usize = 1 << 20;
/// Of a longer one, or of a text, what is kept of its beginning and of its end.
const PART: usize = 32 << 10;

/// What came so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept(Arc<Mutex<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    /// The beginning.
    head: Vec<u8>,
    /// The end, where the beginning does not hold all.
    tail: VecDeque<u8>,
    length: usize,
}

impl Kept {
    /// Adds what came.
    pub(super) fn push(&self, bytes: &[u8]) {
        let mut kept = self.lock();
        kept.length += bytes.len();
        let (begun, rest) = bytes.split_at(bytes.len().min(WHOLE - kept.head.len()));
        kept.head.extend_from_slice(begun);
        kept.tail.extend(rest);
        let over = kept.tail.len().saturating_sub(PART);
        kept.tail.drain(..over);
    }

    /// All of it, where it is not too long.
    pub(super) fn whole(&self) -> Option<Vec<u8>> {
        let kept = self.lock();
        (kept.length == kept.head.len()).then(|| kept.head.clone())
    }

    /// It as text, and whether something was left out.
    pub(super) fn text(&self) -> (String, bool) {
        let kept = self.lock();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if kept.length <= 2 * PART {
            return (text(&kept.head).trim_end_matches('\n').to_owned(), false);
        }
        let missing = PART - kept.tail.len();
        let mut end = kept.head[kept.head.len() - missing..].to_vec();
        end.extend(&kept.tail);
        (format!("{}\n...\n{}", text(&kept.head[..PART]), text(&end).trim_end_matches('\n')), true)
    }

    fn lock(&self) -> MutexGuard<'_, Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_keeps_its_beginning_and_its_end() {
        for (count, truncated, whole) in [
            (10, false, true),
            (2 * PART, false, true),
            (2 * PART + 8, true, true),
            (WHOLE + 8, true, false),
            (3 * WHOLE, true, false),
        ] {
            let kept = Kept::default();
            let all: Vec<u8> = (0..count).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
            all.chunks(1_000).for_each(|piece| kept.push(piece));
            let (text, left_out) = kept.text();
            assert_eq!((left_out, kept.whole().is_some()), (truncated, whole), "{count}");
            let ends = &all[all.len() - 10..];
            assert!(text.as_bytes().starts_with(&all[..10]) && text.as_bytes().ends_with(ends), "{count}");
            assert!(text.len() <= 2 * PART + 5, "{count}: {}", text.len());
        }
    }
}
