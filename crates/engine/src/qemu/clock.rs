//! Measures the rate of the host's time stamp counter, which an emulated guest uses directly.

use std::{
    arch::x86_64::_rdtsc,
    thread::sleep,
    time::{Duration, Instant},
};

/// Duration of the measurement. With the error of two samples, the rate is precise to some millionths.
const MEASUREMENT_TIME: Duration = Duration::from_millis(20);
/// Attempts to read both clocks without being preempted in between. The best counts.
const ATTEMPTS: u32 = 100;
/// Maximum ticks between the two counter reads around a clock read: some microseconds.
const MAX_READ_DISTANCE: u64 = 20_000;

/// Ticks per millisecond. `None` if the machine was too busy for a measurement.
pub(super) fn tsc_khz() -> Option<u64> {
    let (begun, first) = sample()?;
    sleep(MEASUREMENT_TIME);
    let (ended, last) = sample()?;
    let nanoseconds = ended.duration_since(begun).as_nanos();
    let ticks = u128::from(last.checked_sub(first)?);
    u64::try_from(ticks * 1_000_000 / nanoseconds.max(1)).ok().filter(|khz| *khz > 0)
}

/// A time and the counter value at that time.
fn sample() -> Option<(Instant, u64)> {
    let attempts = (0..ATTEMPTS).filter_map(|_| {
        let before = ticks();
        let now = Instant::now();
        let apart = ticks().checked_sub(before)?;
        (apart < MAX_READ_DISTANCE).then_some((apart, now, before + apart / 2))
    });
    attempts.min_by_key(|(apart, ..)| *apart).map(|(_, now, ticks)| (now, ticks))
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and it accesses no memory.
    unsafe { _rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree_within_the_tolerance_of_templates() {
        let (one, other) = (tsc_khz().unwrap(), tsc_khz().unwrap());
        assert!(one.abs_diff(other) * 1000 < one, "{one} and {other} kHz");
    }
}
