//! Reads a request body and enforces its size limit and its minimum throughput.

use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use skep_api::{ErrorCode, Failure};

use super::limits::BodyLimit;
use crate::memory::{RequestMemory, SMALL_BYTES};

const LEAST_BYTES_PER_SECOND: f64 = 1024.0;

/// How long a body may take to arrive. An extension of each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyTimes {
    /// For the entire body.
    pub whole: Duration,
    /// The longest time without data, or with less than 1 KiB/s.
    pub stall: Duration,
}

impl Default for BodyTimes {
    fn default() -> Self {
        Self { whole: Duration::from_secs(300), stall: Duration::from_secs(30) }
    }
}

/// Counts the bytes of the current window of [`BodyTimes::stall`]. Only time spent waiting for the body counts.
#[derive(Debug)]
struct Pace {
    span: Duration,
    waited: Duration,
    came: usize,
}

impl Pace {
    fn new(span: Duration) -> Self {
        Self { span, waited: Duration::ZERO, came: 0 }
    }

    fn left(&self) -> Duration {
        self.span.saturating_sub(self.waited)
    }

    /// Adds the bytes that arrived after a wait. Returns whether the throughput is high enough.
    fn count(&mut self, waited: Duration, came: usize) -> bool {
        self.waited += waited;
        self.came += came;
        if self.waited < self.span {
            return true;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let is_fast = self.came as f64 >= self.span.as_secs_f64() * LEAST_BYTES_PER_SECOND;
        *self = Self::new(self.span);
        is_fast
    }
}

/// Reads a body to its end.
///
/// # Errors
/// `body_too_large` as soon as the declared or the received length exceeds the limit; `malformed_body` if the
/// connection breaks or the body takes too long; `overloaded` if its memory cannot be reserved.
pub(super) async fn collect(
    mut body: Body,
    limit: BodyLimit,
    times: BodyTimes,
    memory: Option<&RequestMemory>,
) -> Result<Bytes, Failure> {
    if body.size_hint().lower() > limit.bytes() as u64 {
        return Err(too_large(limit));
    }
    let declared = body.size_hint().exact();
    let most = declared.unwrap_or(limit.bytes() as u64);
    let mut bytes = BytesMut::new();
    let (begun, mut pace) = (Instant::now(), Pace::new(times.stall));
    loop {
        let (asked, left) = (Instant::now(), times.whole.saturating_sub(begun.elapsed()));
        let frame = tokio::time::timeout(pace.left().min(left), body.frame()).await;
        let waited = asked.elapsed();
        let Ok(frame) = frame else {
            if begun.elapsed() >= times.whole {
                return Err(cut(&format!("it took longer than {:?}; send it faster, or less", times.whole)));
            }
            let came = pace.came;
            if pace.count(waited.max(pace.left()), 0) {
                continue;
            }
            return Err(if came == 0 {
                cut(&format!("nothing came for {:?}", times.stall))
            } else {
                too_slow(times)
            });
        };
        let Some(frame) = frame else { return Ok(bytes.freeze()) };
        let frame = frame.map_err(|_| cut("the connection broke"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit.bytes() {
            return Err(too_large(limit));
        }
        if let Some(memory) = memory
            && (bytes.len() as u64..(bytes.len() + data.len()) as u64).contains(&SMALL_BYTES)
        {
            // Once for the text, once for the value parsed from it.
            memory.reserve(2 * most).await?;
        }
        bytes.extend_from_slice(&data);
        if !pace.count(waited, data.len()) {
            return Err(too_slow(times));
        }
    }
}

fn cut(why: &str) -> Failure {
    Failure::new(ErrorCode::MalformedBody, format!("the body was cut short: {why}"))
}

fn too_slow(times: BodyTimes) -> Failure {
    cut(&format!("less than 1 KiB/s came for {:?}; send it faster", times.stall))
}

fn too_large(limit: BodyLimit) -> Failure {
    Failure::new(ErrorCode::BodyTooLarge, format!("the body is larger than {limit}; send less"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_with_less_than_its_due_is_too_slow() {
        let span = Duration::from_secs(30);
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(span);
        assert!((0..300).all(|_| pace.count(second, 1024)));
        let mut pace = Pace::new(span);
        assert_eq!((0..30).filter(|_| !pace.count(second, 1023)).count(), 1);
        // Bytes count only in the window in which they arrive.
        let mut pace = Pace::new(span);
        assert!(pace.count(Duration::ZERO, 30 << 10));
        assert!((0..30).all(|_| pace.count(second, 0)));
        assert_eq!((0..30).filter(|_| !pace.count(second, 1)).count(), 1);
    }
}
