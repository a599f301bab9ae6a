//! The output of one stream of a command: its first and its last half megabyte.

use std::collections::VecDeque;

use bytes::Bytes;
use skep_api::exec::KEPT_OUTPUT_BYTES;

const HALF_BYTES: usize = KEPT_OUTPUT_BYTES / 2;
/// How far a reader may be behind before the command has to wait for it, in bytes. The rest of the half holds what is
/// in the pipe when the command ends.
const MAX_READER_LAG: u64 = (HALF_BYTES - 128 * 1024) as u64;
/// The longest chunk that is returned, in bytes.
const MAX_CHUNK_BYTES: usize = 32 * 1024;

/// The kept part of a stream. Offsets count the bytes that the command wrote, from 0.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    ended: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The offset of the first byte. Larger than requested if the bytes in between were discarded.
    pub(super) offset: u64,
    pub(super) data: Bytes,
}

impl OutputBuffer {
    /// Appends output. Bytes between the two halves are discarded.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        if self.ended {
            return;
        }
        self.total += bytes.len() as u64;
        let into_head = bytes.len().min(HALF_BYTES - self.head.len());
        let (first, rest) = bytes.split_at(into_head);
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(HALF_BYTES);
        self.tail.drain(..surplus);
    }

    /// Discards all later output.
    pub(super) fn finish(&mut self) {
        self.ended = true;
        self.head.shrink_to_fit();
        self.tail.shrink_to_fit();
    }

    /// Whether bytes were discarded.
    pub(super) fn is_truncated(&self) -> bool {
        self.tail_start() > self.head.len() as u64
    }

    /// The number of bytes written so far, kept or not.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The number of bytes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether more may be appended while the slowest reader is at offset `reader`.
    pub(super) fn has_room(&self, reader: u64) -> bool {
        self.total.saturating_sub(reader) < MAX_READER_LAG
    }

    fn tail_start(&self) -> u64 {
        self.total - self.tail.len() as u64
    }

    /// The next chunk from `from`. It may end within a character: holding back half a character could deadlock a
    /// command that waits for a reply to it. `None` if there is no more output now.
    pub(super) fn next_chunk(&self, from: u64) -> Option<Chunk> {
        if from >= self.total {
            return None;
        }
        let mut offset = from;
        let mut data = Vec::with_capacity(MAX_CHUNK_BYTES.min(self.kept_bytes()));
        if let Some(head) = usize::try_from(from).ok().and_then(|from| self.head.get(from..)) {
            data.extend(head.iter().take(MAX_CHUNK_BYTES));
        }
        if data.is_empty() {
            offset = from.max(self.tail_start());
        }
        // After a gap, the tail may start within a character.
        if offset > from {
            offset += self.tail.iter().take(3).take_while(|byte| is_continuation(**byte)).count() as u64;
        }
        let position = offset + data.len() as u64;
        if data.len() < MAX_CHUNK_BYTES && position >= self.tail_start() {
            let skip = (position - self.tail_start()) as usize;
            let most = MAX_CHUNK_BYTES - data.len();
            data.extend(self.tail.range(skip.min(self.tail.len())..).take(most));
        }
        (!data.is_empty()).then(|| Chunk { offset, data: data.into() })
    }

    /// All kept output as text. Invalid UTF-8 becomes U+FFFD.
    pub(super) fn text(&self) -> String {
        let (front, back) = self.tail.as_slices();
        let tail = [front, back].concat();
        if !self.is_truncated() {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let head = &self.head[..self.head.len() - incomplete_character_len(&self.head)];
        let begin = tail.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
        let mut text = String::from_utf8_lossy(head).into_owned();
        text.push_str(&String::from_utf8_lossy(&tail[begin..]));
        text
    }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// The number of bytes at the end that belong to an incomplete character.
fn incomplete_character_len(bytes: &[u8]) -> usize {
    let last = bytes.len().saturating_sub(3);
    for (index, byte) in bytes.iter().enumerate().skip(last).rev() {
        if is_continuation(*byte) {
            continue;
        }
        let length = match byte {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => 1,
        };
        let here = bytes.len() - index;
        return if length > here { here } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_all(tape: &OutputBuffer, mut at: u64) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = tape.next_chunk(at) {
            at = piece.offset + piece.data.len() as u64;
            all.extend_from_slice(&piece.data);
        }
        all
    }

    #[test]
    fn the_first_and_the_last_half_are_kept() {
        let mut tape = OutputBuffer::default();
        tape.append(&vec![b'a'; HALF_BYTES]);
        tape.append(&vec![b'b'; HALF_BYTES]);
        assert!(!tape.is_truncated());
        assert_eq!(tape.text().len(), KEPT_OUTPUT_BYTES);
        tape.append(b"c");
        assert!(tape.is_truncated());
        let text = tape.text();
        assert_eq!(text.len(), KEPT_OUTPUT_BYTES);
        assert!(text.starts_with('a') && text.ends_with("bc"));
    }

    #[test]
    fn a_kept_half_never_cuts_a_character() {
        let mut tape = OutputBuffer::default();
        tape.append(b"x");
        tape.append("é".repeat(KEPT_OUTPUT_BYTES).as_bytes());
        tape.append(b"y");
        let text = tape.text();
        assert!(tape.is_truncated());
        assert!(!text.contains('\u{FFFD}'), "a character was cut");
    }

    #[test]
    fn a_reader_behind_a_gap_continues_at_the_tail() {
        let mut tape = OutputBuffer::default();
        tape.append(&vec![b'a'; 3 * HALF_BYTES]);
        tape.append(b"end");
        let piece = tape.next_chunk(HALF_BYTES as u64).expect("a piece");
        assert_eq!(piece.offset, (2 * HALF_BYTES + 3) as u64);
        assert_eq!(tape.next_chunk(u64::MAX), None);
        assert!(!tape.has_room(0) && tape.has_room(3 * HALF_BYTES as u64));
    }

    #[test]
    fn bytes_come_at_once_also_within_a_character() {
        let mut tape = OutputBuffer::default();
        tape.append(b"ok\xE2\x82");
        assert_eq!(tape.next_chunk(0).expect("a piece").data.as_ref(), b"ok\xE2\x82");
        assert_eq!(tape.next_chunk(4), None);
        tape.append(b"\xAC");
        assert_eq!(tape.next_chunk(4).expect("a piece").data.as_ref(), b"\xAC");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn pieces_join_to_what_was_written(chunks in prop::collection::vec("\\PC{0,1000}", 0..40)) {
            let mut tape = OutputBuffer::default();
            let mut read = Vec::new();
            for chunk in &chunks {
                // Appended in odd chunks, so that some characters are split.
                for bit in chunk.as_bytes().chunks(7) {
                    tape.append(bit);
                }
                while let Some(piece) = tape.next_chunk(read.len() as u64) {
                    read.extend_from_slice(&piece.data);
                }
            }
            tape.finish();
            read.extend(read_all(&tape, read.len() as u64));
            prop_assert_eq!(read, chunks.concat().into_bytes());
        }

        #[test]
        fn no_bytes_get_stuck(bytes in prop::collection::vec(any::<u8>(), 0..70_000), from in 0u64..70_000) {
            let mut tape = OutputBuffer::default();
            tape.append(&bytes);
            tape.finish();
            let rest = bytes.get(from as usize..).unwrap_or_default();
            prop_assert_eq!(read_all(&tape, from), rest);
        }
    }
}
