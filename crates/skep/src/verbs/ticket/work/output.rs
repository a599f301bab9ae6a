//! Captures the output of a command: all of it up to a limit, else its beginning and end.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum length of output that is kept as a whole, in bytes: it may be the ticket's result.
const MAX_WHOLE_BYTES: usize = 1 << 20;
/// Number of bytes that are kept of the end of longer output.
const TAIL_BYTES: usize = 64 << 10;

/// Captured output.
#[derive(Debug, Clone, Default)]
pub(super) struct CapturedOutput(Arc<Mutex<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    head: Vec<u8>,
    /// The end of output that exceeds `head`.
    tail: VecDeque<u8>,
    length: usize,
}

impl CapturedOutput {
    pub(super) fn push(&self, bytes: &[u8]) {
        let mut kept = self.lock();
        kept.length += bytes.len();
        let (begun, rest) = bytes.split_at(bytes.len().min(MAX_WHOLE_BYTES - kept.head.len()));
        kept.head.extend_from_slice(begun);
        kept.tail.extend(rest);
        let over = kept.tail.len().saturating_sub(TAIL_BYTES);
        kept.tail.drain(..over);
    }

    /// The output, unless it is too long.
    pub(super) fn whole(&self) -> Option<Vec<u8>> {
        let kept = self.lock();
        (kept.length == kept.head.len()).then(|| kept.head.clone())
    }

    /// The last 64 KiB, as text.
    pub(super) fn tail(&self) -> String {
        let kept = self.lock();
        let missing = (TAIL_BYTES - kept.tail.len()).min(kept.head.len());
        let mut end = kept.head[kept.head.len() - missing..].to_vec();
        end.extend(&kept.tail);
        let is_cut = end.len() < kept.length;
        // Skips the rest of a character that was cut at the beginning.
        let rest = end.iter().take(3).take_while(|byte| is_cut && **byte & 0xc0 == 0x80).count();
        String::from_utf8_lossy(&end[rest..]).into_owned()
    }

    fn lock(&self) -> MutexGuard<'_, Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_keeps_its_end() {
        for count in [
            10,
            TAIL_BYTES,
            TAIL_BYTES + 8,
            MAX_WHOLE_BYTES,
            MAX_WHOLE_BYTES + 8,
            MAX_WHOLE_BYTES + TAIL_BYTES + 8,
            3 * MAX_WHOLE_BYTES,
        ] {
            let kept = CapturedOutput::default();
            let all: Vec<u8> = (0..count).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
            all.chunks(1_000).for_each(|piece| kept.push(piece));
            assert_eq!(kept.whole().is_some(), count <= MAX_WHOLE_BYTES, "{count}");
            assert_eq!(kept.tail().as_bytes(), &all[all.len().saturating_sub(TAIL_BYTES)..], "{count}");
        }
    }

    #[test]
    fn a_cut_character_is_left_out() {
        let kept = CapturedOutput::default();
        kept.push("ü".repeat(TAIL_BYTES).as_bytes());
        kept.push(b"x");
        let tail = kept.tail();
        assert!(
            tail.starts_with('ü') && tail.ends_with("üx") && tail.len() == TAIL_BYTES - 1,
            "{}",
            tail.len()
        );
    }
}
