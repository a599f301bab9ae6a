//! Sets the system clock.

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};

use crate::error::{Error, StepContext};

const NS_PER_S: u64 = 1_000_000_000;

/// Sets the clock, in nanoseconds since 1970. Returns by how many milliseconds it was slow.
pub(crate) fn set(unix_time_ns: u64) -> Result<f64, Error> {
    let malformed = |_| Error::Malformed { part: "time", wanted: "nanoseconds since 1970" };
    let wanted = Timespec {
        tv_sec: i64::try_from(unix_time_ns / NS_PER_S).map_err(malformed)?,
        tv_nsec: i64::try_from(unix_time_ns % NS_PER_S).map_err(malformed)?,
    };
    let before = clock_gettime(ClockId::Realtime);
    clock_settime(ClockId::Realtime, wanted).context("set the clock")?;
    Ok(milliseconds(wanted, before))
}

fn milliseconds(later: Timespec, earlier: Timespec) -> f64 {
    (later.tv_sec - earlier.tv_sec) as f64 * 1e3 + (later.tv_nsec - earlier.tv_nsec) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_sign() {
        let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        assert_eq!(milliseconds(at(12, 0), at(10, 500_000_000)), 1500.0);
        assert_eq!(milliseconds(at(10, 500_000_000), at(12, 0)), -1500.0);
    }
}
