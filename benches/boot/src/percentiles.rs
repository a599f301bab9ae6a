//! Percentiles of measured values.

use serde::Serialize;

/// Percentiles by nearest rank: each is one of the measured values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Percentiles {
    /// `None` without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let rank = |percent: usize| (values.len() * percent).div_ceil(100).max(1) - 1;
        let at = |percent| values.get(rank(percent)).copied();
        Some(Self { p50: at(50)?, p95: at(95)?, p99: at(99)?, max: at(100)? })
    }
}

/// Rounds to three decimals, as the API does.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_value_of_its_rank() {
        let hundred = Percentiles::of((1..=100).rev().map(f64::from)).unwrap();
        assert_eq!(hundred, Percentiles { p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 });
        let few = Percentiles::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(few, Percentiles { p50: 2.0, p95: 3.0, p99: 3.0, max: 3.0 });
        assert_eq!(Percentiles::of([7.0]).unwrap().p50, 7.0);
        assert_eq!(Percentiles::of([]), None);
    }
}
