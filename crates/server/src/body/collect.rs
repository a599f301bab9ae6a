//! Reads a request body and enforces its size limit and its minimum throughput.

use std::time::Instant;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use skep_api::{ErrorCode, Failure};

use super::{
    limits::BodyLimit,
    throughput::{Throughput, too_slow},
};
use crate::{
    door::limits::BodyTimeouts,
    memory::{RequestMemory, SMALL_BODY_BYTES},
};

/// What is reserved at first for a body that does not declare its length, in bytes.
const FIRST_PART: u64 = 256 << 10;

/// Reads a body to its end.
///
/// # Errors
/// `body_too_large` as soon as the declared or the received length exceeds the limit; `malformed_body` if the
/// connection breaks or the body takes too long; `overloaded` if its memory cannot be reserved.
pub(super) async fn collect(
    mut body: Body,
    limit: BodyLimit,
    times: BodyTimeouts,
    memory: Option<&RequestMemory>,
) -> Result<Bytes, Failure> {
    if body.size_hint().lower() > limit.bytes() as u64 {
        return Err(too_large(limit));
    }
    let mut bytes = BytesMut::new();
    let mut reserved = memory.map(|memory| ReservedBody::new(memory, &body, limit));
    let (begun, mut throughput) = (Instant::now(), Throughput::new(times.stall));
    loop {
        let (wait_began, left) = (Instant::now(), times.total.saturating_sub(begun.elapsed()));
        let frame = tokio::time::timeout(throughput.left().min(left), body.frame()).await;
        let waited = wait_began.elapsed();
        let Ok(frame) = frame else {
            if begun.elapsed() >= times.total {
                return Err(cut_short(&format!(
                    "it took longer than {:?}; send it faster, or less",
                    times.total
                )));
            }
            let received = throughput.received;
            if throughput.add(waited.max(throughput.left()), 0) {
                continue;
            }
            return Err(cut_short(&too_slow(received, times.stall)));
        };
        let Some(frame) = frame else { return Ok(bytes.freeze()) };
        let frame = frame.map_err(|_| cut_short("the connection broke"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit.bytes() {
            return Err(too_large(limit));
        }
        if let Some(reserved) = &mut reserved {
            reserved.grow_to((bytes.len() + data.len()) as u64).await?;
        }
        bytes.extend_from_slice(&data);
        let received = throughput.received + data.len();
        if !throughput.add(waited, data.len()) {
            return Err(cut_short(&too_slow(received, times.stall)));
        }
    }
}

/// The memory that is reserved for a body.
struct ReservedBody<'a> {
    memory: &'a RequestMemory,
    declared: Option<u64>,
    max_bytes: u64,
    /// The length that the reservation suffices for.
    suffices_for: u64,
}

impl<'a> ReservedBody<'a> {
    fn new(memory: &'a RequestMemory, body: &Body, limit: BodyLimit) -> Self {
        let declared = body.size_hint().exact();
        Self { memory, declared, max_bytes: limit.bytes() as u64, suffices_for: SMALL_BODY_BYTES }
    }

    /// Reserves memory before a body has this length, whole if it declares its own. Only a body that has little in memory waits.
    async fn grow_to(&mut self, length: u64) -> Result<(), Failure> {
        if length <= self.suffices_for {
            return Ok(());
        }
        let is_first = self.suffices_for == SMALL_BODY_BYTES;
        let next = if is_first { FIRST_PART } else { 2 * self.suffices_for };
        self.suffices_for = self.declared.unwrap_or(next.min(self.max_bytes)).max(length);
        // The text and the value that is parsed from it each take that much.
        let bytes = 2 * self.suffices_for;
        if is_first { self.memory.reserve_body(bytes).await } else { self.memory.extend_body(bytes) }
    }
}

fn cut_short(why: &str) -> Failure {
    Failure::new(ErrorCode::MalformedBody, format!("the body was cut short: {why}"))
}

fn too_large(limit: BodyLimit) -> Failure {
    Failure::new(ErrorCode::BodyTooLarge, format!("the body is larger than {limit}; send less"))
}
