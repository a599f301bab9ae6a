//! Splits raw bytes that are sent into a guest, so that the guest does not mistake them for a marker.

use bytes::Bytes;
use memchr::memmem;

use crate::marker::MAGIC;

/// Splits bytes so that no chunk contains the whole magic. Each chunk is sent in its own frame. The header between two
/// frames (RFC 9113, section 4.1) starts with a zero byte for frames of less than 64 KiB, and the magic contains no
/// zero byte.
pub(super) fn without_magic(mut bytes: Bytes) -> Vec<Bytes> {
    let mut pieces = Vec::with_capacity(1);
    while let Some(at) = memmem::find(&bytes, &MAGIC) {
        pieces.push(bytes.split_to(at + MAGIC.len() / 2));
    }
    pieces.push(bytes);
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_the_same_bytes_and_hold_no_magic(
            parts in prop::collection::vec(
                prop_oneof![Just(MAGIC.to_vec()), Just(MAGIC[..9].to_vec()), prop::collection::vec(any::<u8>(), 0..20)],
                0..20,
            ),
        ) {
            let bytes = parts.concat();
            let pieces = without_magic(bytes.clone().into());
            prop_assert_eq!(pieces.concat(), bytes);
            prop_assert!(pieces.iter().all(|piece| memmem::find(piece, &MAGIC).is_none()));
        }
    }
}
