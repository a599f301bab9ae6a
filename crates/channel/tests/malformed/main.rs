//! Sends ten thousand malformed frames to the host end, which must not panic, hang or grow.
//!
//! Deterministic: the same seeds give the same bytes. `make fuzz` runs the same sessions with more inputs.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod session;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::{StreamExt, stream};
use session::{Echo, Script, play, recorded};

/// The number of connections. Each contains at least one malformed frame.
const SESSIONS: u64 = 10_000;
/// The number of concurrent sessions.
const AT_ONCE: usize = 32;
/// The memory growth that remains after all sessions, in bytes. It should be none except for what the allocator keeps.
const GROWTH_BYTES: usize = 16 << 20;
/// The number of sessions after which the memory of the process is stable.
const WARM_UP_SESSIONS: u64 = 2_000;

/// Pseudo-random numbers: SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("small")
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most + 1);
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// An HTTP/2 frame with a well-formed header. The length field is `declared`, or else the real length.
    fn frame(&mut self, declared: Option<usize>) -> Vec<u8> {
        let content = self.bytes(200);
        let length = u32::try_from(declared.unwrap_or(content.len())).expect("small").to_be_bytes();
        // The ten known kinds and some unknown ones.
        let kind = u8::try_from(self.below(12)).expect("small");
        let flags = self.next().to_le_bytes()[0];
        let stream = [0, 1, 1, 1, 2, 3, 0x7FFF_FFFF_u32][self.below(7)].to_be_bytes();
        [&length[1..], &[kind, flags], &stream, &content].concat()
    }

    fn mutated(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next().to_le_bytes()[0],
                2 => drop(bytes.drain(at..(at + self.below(30) + 1).min(bytes.len()))),
                _ => drop(bytes.splice(at..at, self.bytes(30))),
            }
            if bytes.is_empty() {
                break;
            }
        }
        bytes
    }
}

fn script(seed: u64, good: &[Vec<u8>; 2]) -> Script {
    let mut dice = Rng(seed);
    let streamed = dice.below(2) == 1;
    let good = &good[usize::from(streamed)];
    // An empty SETTINGS frame, with which every connection starts.
    let begun = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let waits = dice.below(4) > 0;
    let mut plain = Script { early: Vec::new(), echo: Echo::Right, late: Vec::new(), waits, streamed };
    match seed % 6 {
        0 => plain.late = dice.bytes(400),
        1 => plain.late = [begun.to_vec(), dice.frame(None), dice.frame(None)].concat(),
        2 => {
            let declared = [1, 20_000, 0xFF_FFFF][dice.below(3)];
            plain.late = [begun.to_vec(), dice.frame(Some(declared))].concat();
        }
        3 => plain.late = dice.mutated(good),
        4 => {
            plain.early = dice.bytes(100);
            plain.echo = [Echo::Twice, Echo::AfterHalf, Echo::Other, Echo::Late][dice.below(4)];
            plain.late = dice.mutated(good);
        }
        _ => {
            let at = dice.below(good.len());
            plain.late = [&good[..at], &dice.frame(None), &good[at..]].concat();
        }
    }
    plain
}

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    text.split(' ').nth(1).expect("a figure").parse::<usize>().expect("a number") * 4096
}

/// Runs the sessions with these seeds and counts those whose answer the host accepted.
async fn play_all(seeds: std::ops::Range<u64>, good: &Arc<[Vec<u8>; 2]>) -> usize {
    let sessions = stream::iter(seeds).map(|seed| {
        let good = Arc::clone(good);
        tokio::spawn(async move { play(&script(seed, &good)).await.is_ok() })
    });
    let outcomes = sessions.buffer_unordered(AT_ONCE);
    outcomes.fold(0, async |good, outcome| good + usize::from(outcome.expect("no panic"))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_malformed_frames_are_errors_and_no_more() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let usual = std::panic::take_hook();
    // A panic in the task of the connection would otherwise go unnoticed.
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        usual(info);
    }));
    let good = Arc::new([recorded(false).await, recorded(true).await]);
    // The control: the same bytes without a fault are accepted, so the sessions reach this point.
    for (streamed, late) in [false, true].into_iter().zip(good.iter().cloned()) {
        let polite = Script { early: Vec::new(), echo: Echo::Right, late, waits: true, streamed };
        play(&polite).await.expect("a good session");
    }
    let mut taken_for_good = play_all(0..WARM_UP_SESSIONS, &good).await;
    let before = resident();
    taken_for_good += play_all(WARM_UP_SESSIONS..SESSIONS, &good).await;
    let grown = resident().saturating_sub(before);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    assert!(grown < GROWTH_BYTES, "the host has grown by {grown} bytes");
    // A flipped bit within a text may go unnoticed; most faults do not.
    let sessions = usize::try_from(SESSIONS).expect("small");
    assert!(taken_for_good > 0 && taken_for_good < sessions / 2, "{taken_for_good} of {sessions}");
    eprintln!("{taken_for_good} of {sessions} were taken for good; the host grew by {grown} bytes");
}
