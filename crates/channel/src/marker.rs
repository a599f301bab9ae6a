//! The marker at the start of each connection of the host, and the scanner that finds it in the stream.

use memchr::memmem;

/// The start of every marker. Its first four bytes never occur in UTF-8, so no request with a JSON body contains it.
/// The host splits raw bytes so that no frame contains it.
pub const MAGIC: [u8; 16] = *b"\xFF\xFE\xFD\xC0skep resync\n";
/// The number of random bytes after the magic, by which the host recognises its own marker.
pub const NONCE_BYTES: usize = 32;

/// The first bytes of the magic that are passed on before it is clear whether a marker follows. No frame of a live
/// connection ends with more than these, so no frame is held back while the scanner waits for more.
const MAX_PASSED_ON: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    nonce: [u8; NONCE_BYTES],
}

impl Marker {
    /// The length of a marker in bytes.
    pub const BYTES: usize = MAGIC.len() + NONCE_BYTES;

    pub const fn new(nonce: [u8; NONCE_BYTES]) -> Self {
        Self { nonce }
    }

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (magic, nonce) = bytes.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        nonce.copy_from_slice(&self.nonce);
        bytes
    }
}

/// Finds markers in a stream that arrives in chunks.
#[derive(Debug, Clone)]
pub struct Scanner {
    /// How many bytes of the magic the stream ends with.
    matched: usize,
    /// How many of these bytes were not passed on.
    held: usize,
    nonce: [u8; NONCE_BYTES],
    /// How many random bytes of a marker were read. `None` outside a marker.
    collected: Option<usize>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { matched: 0, held: 0, nonce: [0; NONCE_BYTES], collected: None }
    }
}

impl Scanner {
    /// Scans the next bytes. Bytes that belong to no marker are appended to `passed`.
    ///
    /// Stops after a marker and returns the number of bytes read up to its end; the rest belongs to the new
    /// connection.
    pub fn feed(&mut self, input: &[u8], passed: &mut Vec<u8>) -> Option<(Marker, usize)> {
        let mut index = 0;
        while index < input.len() {
            if self.matched == 0 && self.collected.is_none() {
                let unmatched = bytes_before_magic(&input[index..]);
                passed.extend_from_slice(&input[index..index + unmatched]);
                index += unmatched;
            }
            let Some(&byte) = input.get(index) else { break };
            index += 1;
            if let Some(marker) = self.take(byte, passed) {
                return Some((marker, index));
            }
        }
        None
    }

    /// Scans one byte. Returns the marker that it completes, if any.
    fn take(&mut self, byte: u8, passed: &mut Vec<u8>) -> Option<Marker> {
        let inside = self.collected.is_some();
        if let Some(count) = self.collected {
            self.nonce[count] = byte;
            self.collected = Some(count + 1);
        }
        if self.advance(byte, passed, inside) {
            self.collected = Some(0);
        } else if self.collected == Some(NONCE_BYTES) {
            self.collected = None;
            return Some(Marker::new(self.nonce));
        }
        None
    }

    /// Returns whether this byte completes a magic. A magic within the random bytes of a marker starts another marker:
    /// the previous one was never completed.
    fn advance(&mut self, byte: u8, passed: &mut Vec<u8>, inside: bool) -> bool {
        if byte != MAGIC[self.matched] {
            passed.extend_from_slice(&MAGIC[self.matched - self.held..self.matched]);
            // The first byte of the magic occurs only once in it, so a new match can only start here.
            self.held = 0;
            self.matched = 0;
        }
        if byte == MAGIC[self.matched] {
            self.matched += 1;
        }
        if !inside && self.matched <= MAX_PASSED_ON {
            passed.push(byte);
        } else if !inside {
            self.held += 1;
        }
        let whole = self.matched == MAGIC.len();
        if whole {
            self.matched = 0;
            self.held = 0;
        }
        whole
    }
}

/// The number of bytes before the first possible start of a magic; usually all of them.
fn bytes_before_magic(bytes: &[u8]) -> usize {
    match memmem::find(bytes, &MAGIC[..2]) {
        Some(at) => at,
        None => bytes.len() - usize::from(bytes.last() == Some(&MAGIC[0])),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed_all(scanner: &mut Scanner, pieces: &[&[u8]]) -> (Vec<u8>, Option<Marker>, Vec<u8>) {
        let (mut passed, mut found, mut rest) = (Vec::new(), None, Vec::new());
        for piece in pieces {
            if found.is_some() {
                rest.extend_from_slice(piece);
            } else if let Some((marker, taken)) = scanner.feed(piece, &mut passed) {
                found = Some(marker);
                rest.extend_from_slice(&piece[taken..]);
            }
        }
        (passed, found, rest)
    }

    #[test]
    fn a_marker_is_found_however_it_is_split() {
        let marker = Marker::new([7; NONCE_BYTES]);
        let stream = [b"GET \xFF".as_slice(), &marker.to_bytes(), b"PRI"].concat();
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                let (passed, found, rest) = feed_all(&mut Scanner::default(), &pieces);
                assert_eq!(found, Some(marker), "split at {first} and {second}");
                assert_eq!(passed, b"GET \xFF\xFF\xFE");
                assert_eq!(rest, b"PRI");
            }
        }
    }

    #[test]
    fn an_ordinary_end_is_never_held_back() {
        let (mut scanner, mut passed) = (Scanner::default(), Vec::new());
        assert_eq!(scanner.feed(b"frame\xFF\xFE", &mut passed), None);
        assert_eq!(passed, b"frame\xFF\xFE");
        assert_eq!(scanner.feed(b"next", &mut passed), None);
        assert_eq!(passed, b"frame\xFF\xFEnext");
    }

    proptest! {
        #[test]
        fn what_is_no_marker_passes(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0xFCu8..=0xFF], 0..500)) {
            let (mut scanner, mut passed) = (Scanner::default(), Vec::new());
            prop_assert_eq!(scanner.feed(&bytes, &mut passed), None);
            scanner.feed(b"..", &mut passed);
            prop_assert_eq!(passed, [bytes.as_slice(), b".."].concat());
        }

        #[test]
        fn a_marker_is_found_behind_garbage_and_unfinished_markers(
            garbage in prop::collection::vec(any::<u8>(), 0..200),
            unfinished in prop::collection::vec(0..Marker::BYTES, 0..4),
            nonce in any::<[u8; NONCE_BYTES]>(),
            split in 1usize..64,
        ) {
            let marker = Marker::new(nonce);
            let mut stream = garbage;
            for length in unfinished {
                stream.extend_from_slice(&Marker::new([0x5A; NONCE_BYTES]).to_bytes()[..length]);
            }
            stream.extend_from_slice(&marker.to_bytes());
            let (mut scanner, mut last) = (Scanner::default(), None);
            for piece in stream.chunks(split) {
                let mut from = 0;
                while let Some((found, taken)) = scanner.feed(&piece[from..], &mut Vec::new()) {
                    last = Some(found);
                    from += taken;
                }
            }
            prop_assert_eq!(last, Some(marker));
        }
    }
}
