//! The encoding of a command's events in a byte stream.
//!
//! Each event is a frame: one byte for its kind (1 stdout, 2 stderr, 3 exit), the offset of its first byte in its
//! stream (8 bytes, big-endian), the length of the payload (4 bytes, big-endian), then the output, or the exit as
//! JSON.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use skep_api::exec::ExecEvent;

const HEADER_BYTES: usize = 13;
/// The longest payload of a frame, in bytes. The guest agent sends shorter ones.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    #[error("a frame of kind {0}")]
    Kind(u8),
    #[error("a frame of {0} bytes")]
    Length(usize),
    #[error("a malformed exit event: {0}")]
    Exit(#[from] serde_json::Error),
}

/// Encodes an event as a frame. `offset` is that of its first byte in its stream; it is ignored for the exit.
///
/// # Errors
/// An exit that cannot be serialised as JSON.
pub fn encode(offset: u64, event: &ExecEvent) -> Result<Bytes, serde_json::Error> {
    let (kind, payload) = match event {
        ExecEvent::Stdout(data) => (1, data.clone()),
        ExecEvent::Stderr(data) => (2, data.clone()),
        ExecEvent::Exit(exit) => (3, serde_json::to_vec(exit)?.into()),
    };
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + payload.len());
    frame.put_u8(kind);
    frame.put_u64(offset);
    frame.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    frame.put_slice(&payload);
    Ok(frame.freeze())
}

/// Decodes frames from a stream that arrives in chunks. Buffers at most one frame and one chunk.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Adds the next chunk of the stream.
    pub fn feed(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next complete event with its offset. `None` if more data is needed.
    ///
    /// # Errors
    /// The stream is malformed; decoding cannot continue.
    pub fn next_event(&mut self) -> Result<Option<(u64, ExecEvent)>, Malformed> {
        let mut header = self.buffer.as_ref();
        if header.len() < HEADER_BYTES {
            return Ok(None);
        }
        let (kind, offset, length) = (header.get_u8(), header.get_u64(), header.get_u32() as usize);
        if !(1..=3).contains(&kind) {
            return Err(Malformed::Kind(kind));
        }
        if length > MAX_FRAME_BYTES {
            return Err(Malformed::Length(length));
        }
        if header.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = self.buffer.split_to(length).freeze();
        let event = match kind {
            1 => ExecEvent::Stdout(payload),
            2 => ExecEvent::Stderr(payload),
            _ => ExecEvent::Exit(serde_json::from_slice(&payload)?),
        };
        Ok(Some((offset, event)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skep_api::exec::ExecExit;

    use super::*;

    fn events() -> impl Strategy<Value = (u64, ExecEvent)> {
        let data = || prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        let exit = any::<(Option<i32>, u64, bool)>().prop_map(|(exit_code, duration_ms, timed_out)| {
            let signal = Some("SIGKILL".to_owned());
            ExecEvent::Exit(ExecExit { exit_code, signal, duration_ms, timed_out, truncated: false })
        });
        (
            any::<u64>(),
            prop_oneof![data().prop_map(ExecEvent::Stdout), data().prop_map(ExecEvent::Stderr), exit],
        )
    }

    proptest! {
        #[test]
        fn events_survive_the_way_in_any_pieces(all in prop::collection::vec(events(), 0..8), size in 1usize..64) {
            let frames: Vec<Bytes> = all.iter().map(|(at, event)| encode(*at, event).unwrap()).collect();
            let (mut decoder, mut decoded) = (Decoder::default(), Vec::new());
            for piece in frames.concat().chunks(size) {
                decoder.feed(piece);
                while let Some(event) = decoder.next_event().unwrap() {
                    decoded.push(event);
                }
            }
            prop_assert!(decoder.buffer.is_empty());
            prop_assert_eq!(decoded, all);
        }

        #[test]
        fn garbage_is_an_error_or_waits(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next_event() {}
        }
    }

    #[test]
    fn a_huge_frame_is_refused_before_it_is_read() {
        let mut decoder = Decoder::default();
        decoder.feed(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert!(matches!(decoder.next_event(), Err(Malformed::Length(0xFFFF_FFFF))));
    }
}
