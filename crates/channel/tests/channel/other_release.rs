//! Guest agents of other releases: the answers that a server receives from them before it sends operations. The tests of
//! the swarm use this file, too.

use skep_channel::marker::Scanner;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
const HEADERS_FRAME: u8 = 1;

/// The SETTINGS frame that every agent sends behind the echo of the marker.
const SETTINGS: &[u8] =
    b"\0\0\x18\x04\0\0\0\0\0\0\x03\0\0\x02\0\0\x04\0\x04\0\0\0\x05\0\0\x40\0\0\x06\0\0\x40\0";

/// What an agent from before the protocol number answers to `GET /protocol` on a new connection: recorded from the guest
/// end of commit f9ec23d, the last one without it, with a relay between `Guest` and `serve`.
pub(crate) const ANSWER_OF_FIRST_PROTOCOL: &[u8] = b"\
    \0\0\0\x04\x01\0\0\0\0\
    \0\0\x04\x08\0\0\0\0\0\0\x3f\0\x01\
    \0\0\x1e\x01\x04\0\0\0\x01\x8c\x61\x96\xd0\x7a\xbe\x94\x13\x2a\x69\x3f\x75\x04\x01\x38\xa0\x1f\xb8\x26\x6e\x34\xca\x98\xb4\x6f\x0f\x0d\x82\x75\x9f\
    \0\0\x49\0\x01\0\0\0\x01{\"code\":\"unknown_route\",\"message\":\"the agent has no route GET /protocol\"}";

/// What an agent of this protocol answers to `GET /protocol` on a new connection.
pub(crate) fn answer_of(protocol: u32) -> Vec<u8> {
    let body = format!("{{\"protocol\":{protocol},\"later\":[]}}");
    let mut answer = b"\0\0\0\x04\x01\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01\x88\0\0".to_vec();
    // A short body: its length is one byte.
    answer.push(body.len() as u8);
    answer.extend_from_slice(b"\0\x01\0\0\0\x01");
    answer.extend_from_slice(body.as_bytes());
    answer
}

/// Echoes the markers of a host, gives this answer to its first request, and stays silent until it hangs up.
pub(crate) async fn play(mut stream: UnixStream, answer: &[u8]) -> std::io::Result<()> {
    let (mut scanner, mut received, mut answered) = (Scanner::default(), Vec::new(), false);
    let mut buffer = vec![0; 4096];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let mut input = &buffer[..count];
        while let Some((marker, taken)) = scanner.feed(input, &mut received) {
            received.clear();
            input = &input[taken..];
            stream.write_all(&[marker.to_bytes().as_slice(), SETTINGS].concat()).await?;
        }
        if !answered && has_request(&received) {
            answered = true;
            stream.write_all(answer).await?;
        }
    }
}

/// Whether a frame with the head of a request has arrived.
fn has_request(connection: &[u8]) -> bool {
    let mut rest = connection.get(PREFACE_BYTES..).unwrap_or_default();
    while let [high, middle, low, kind, ..] = *rest {
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let end = FRAME_HEADER_BYTES + length;
        if rest.len() < end {
            return false;
        }
        if kind == HEADERS_FRAME {
            return true;
        }
        rest = &rest[end..];
    }
    false
}
