//! Decodes UTF-8 that arrives in pieces, without splitting characters.

use std::str;

/// Keeps the incomplete last character of a piece until its rest arrives.
#[derive(Debug, Default)]
pub(crate) struct Utf8Decoder {
    /// The beginning of one character, at most 3 bytes.
    incomplete: Vec<u8>,
}

impl Utf8Decoder {
    /// Returns the complete characters so far. Invalid UTF-8 becomes U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.incomplete);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut left = all.as_slice();
        loop {
            match str::from_utf8(left) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, wrong) = left.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(length) = error.error_len() else {
                        self.incomplete = wrong.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    left = &wrong[length..];
                }
            }
        }
    }

    /// Number of bytes of the incomplete character.
    pub(crate) fn pending(&self) -> usize {
        self.incomplete.len()
    }

    /// The replacement for an incomplete character at the end of the input.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.incomplete)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_together_are_the_whole(
            chunks in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..5),
                    "[aé€🐝]{1,2}".prop_map(String::into_bytes),
                ],
                0..12,
            ),
            cut in 1..4_usize,
        ) {
            let whole = chunks.concat();
            let mut pieces = Utf8Decoder::default();
            let mut text: String = whole.chunks(cut).map(|chunk| pieces.push(chunk)).collect();
            text.push_str(&pieces.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }

    #[test]
    fn an_incomplete_character_is_kept_for_the_next_piece() {
        let mut pieces = Utf8Decoder::default();
        assert_eq!(pieces.push(&"a€".as_bytes()[..2]), "a");
        assert_eq!(pieces.pending(), 1);
        assert_eq!(pieces.push(&"€".as_bytes()[1..]), "€");
        assert_eq!((pieces.pending(), pieces.finish().as_str()), (0, ""));
    }
}
