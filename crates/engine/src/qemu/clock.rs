//! Measures the rate of the host's time stamp counter, which an emulated guest uses directly.

use std::{
    arch::x86_64::_rdtsc,
    thread::sleep,
    time::{Duration, Instant},
};

/// Duration of the measurement. More precision is not needed, because a guest's clock is set at its restore.
const MEASUREMENT_TIME: Duration = Duration::from_millis(20);
/// Attempts to read both clocks without being preempted in between.
const MAX_ATTEMPTS: u32 = 100;
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
    (0..MAX_ATTEMPTS).find_map(|_| {
        let before = ticks();
        let now = Instant::now();
        let after = ticks();
        let apart = after.checked_sub(before)?;
        (apart < MAX_READ_DISTANCE).then_some((now, before + apart / 2))
    })
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and it accesses no memory.
    unsafe { _rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        let (one, other) = (tsc_khz().unwrap(), tsc_khz().unwrap());
        assert!(one.abs_diff(other) * 100 < one, "{one} and {other} kHz");
    }
}
