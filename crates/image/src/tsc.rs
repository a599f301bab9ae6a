//! The rate of the host's time stamp counter. It is in the memory of an emulated guest, whose clocks run at a wrong speed
//! where the counter has another rate.

use std::collections::BTreeMap;

/// Name of the rate in kHz among a template's inputs. It is measured, so it is compared and not a part of the key.
pub(crate) const TSC_KHZ: &str = "tsc_khz";
/// Rates that differ by less than one part of this many are equal. Two measurements differ by less, and an adjusted host
/// clock by half of it.
const TOLERANCE: u64 = 1000;

/// Describes the difference from the rate of a template, as the end of a sentence about it; `None` if there is none, or
/// if one of the rates is unknown.
pub(crate) fn difference(baked: &BTreeMap<String, String>, khz: Option<u64>) -> Option<String> {
    let was: u64 = baked.get(TSC_KHZ)?.parse().ok()?;
    let is = khz?;
    let differs = was.abs_diff(is).saturating_mul(TOLERANCE) > was;
    differs.then(|| format!("for a time stamp counter of {was} kHz, this machine has {is} kHz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_compared_within_a_thousandth() {
        let baked = BTreeMap::from([(TSC_KHZ.to_owned(), "2000000".to_owned())]);
        for equal in [None, Some(2_000_000), Some(2_002_000), Some(1_998_000)] {
            assert_eq!(difference(&baked, equal), None, "{equal:?}");
        }
        assert_eq!(
            difference(&baked, Some(2_002_001)).unwrap(),
            "for a time stamp counter of 2000000 kHz, this machine has 2002001 kHz"
        );
        assert!(difference(&baked, Some(1_997_999)).is_some());
        // A template whose rate is unknown.
        assert_eq!(difference(&BTreeMap::new(), Some(1)), None);
    }
}
