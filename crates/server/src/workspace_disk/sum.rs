//! What an account occupies on disk, between two counts of its files.

use std::time::{Duration, Instant};

/// What VMs write to their disks is known to the next request after this time.
const OUTSIDE_MAX_AGE: Duration = Duration::from_secs(1);

/// The sum of an account with a limit. All numbers are bytes.
#[derive(Debug, Default)]
pub(super) struct DiskSum {
    /// The files of the workspace, by the last count.
    counted: Option<u64>,
    /// What was taken since that count began. Some of it may be in its result too.
    taken: u64,
    /// What was taken since the count in progress began.
    taken_meanwhile: u64,
    /// What was taken and is not written yet.
    in_flight: u64,
    /// Whether a folder was moved since the count in progress began, which may have missed it.
    has_moved: bool,
    /// What else was moved since then.
    moved_meanwhile: u64,
    /// Whether the last count may be too large, because something was moved while it ran.
    is_uncertain: bool,
    /// The files when the count in progress began.
    files_before: Option<u64>,
    /// What the account occupies outside of its workspace.
    outside: Option<u64>,
    outside_since: Option<Instant>,
}

impl DiskSum {
    /// The files of the workspace. `None` before the first count.
    pub(super) fn files(&self) -> Option<u64> {
        Some(self.counted?.saturating_add(self.taken))
    }

    /// The files of the workspace, by the last count alone.
    pub(super) fn counted(&self) -> Option<u64> {
        self.counted
    }

    /// What the account occupies, by the last count alone. `None` if it is not known.
    pub(super) fn counted_total(&self) -> Option<u64> {
        Some(self.counted?.saturating_add(self.outside?))
    }

    /// What the account occupies; [`u64::MAX`] if it is not known.
    pub(super) fn total(&self) -> u64 {
        let total = self.files().zip(self.outside).map(|(files, outside)| files.saturating_add(outside));
        total.unwrap_or(u64::MAX)
    }

    /// Adds to what is taken.
    ///
    /// # Errors
    /// The total, if `max` does not permit more; [`u64::MAX`] if it is not known.
    pub(super) fn try_take(&mut self, bytes: u64, max: u64) -> Result<(), u64> {
        let total = self.total();
        if total.saturating_add(bytes) > max {
            return Err(total);
        }
        for sum in [&mut self.taken, &mut self.taken_meanwhile, &mut self.in_flight] {
            *sum = sum.saturating_add(bytes);
        }
        Ok(())
    }

    pub(super) fn written(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Notes that something was moved, of this size if that is known.
    pub(super) fn moved(&mut self, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => self.moved_meanwhile = self.moved_meanwhile.saturating_add(bytes),
            None => self.has_moved = true,
        }
    }

    pub(super) fn set_outside(&mut self, bytes: u64) {
        self.outside = Some(bytes);
        self.outside_since = Some(Instant::now());
    }

    /// Sets what is known of it, without making it newer.
    pub(super) fn set_outside_at_least(&mut self, bytes: u64) {
        self.outside = self.outside.max(Some(bytes));
    }

    pub(super) fn is_outside_old(&self) -> bool {
        self.outside_since.is_none_or(|since| since.elapsed() > OUTSIDE_MAX_AGE)
    }

    pub(super) fn begin_count(&mut self) {
        // The count may be over when they are written.
        self.taken_meanwhile = self.in_flight;
        self.has_moved = false;
        self.moved_meanwhile = 0;
        self.files_before = self.files();
    }

    pub(super) fn end_count(&mut self, bytes: u64) {
        let least = if self.has_moved { self.files_before } else { None };
        self.counted = Some(bytes.max(least.unwrap_or_default()));
        self.taken = self.taken_meanwhile.saturating_add(self.moved_meanwhile);
        self.is_uncertain = self.has_moved || self.moved_meanwhile > 0;
    }

    /// Whether another count may find less, although nothing is removed in between.
    pub(super) fn is_uncertain(&self) -> bool {
        self.is_uncertain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum whose files were counted.
    fn counted(files: u64, outside: u64) -> DiskSum {
        let mut sum = DiskSum::default();
        sum.set_outside(outside);
        sum.begin_count();
        sum.end_count(files);
        sum
    }

    #[test]
    fn nothing_is_taken_before_all_is_known() {
        let mut sum = DiskSum::default();
        assert_eq!(sum.try_take(1, u64::MAX - 1), Err(u64::MAX));
        sum.begin_count();
        sum.end_count(10);
        assert_eq!((sum.try_take(1, u64::MAX - 1), sum.counted_total()), (Err(u64::MAX), None));
        sum.set_outside(5);
        assert_eq!((sum.files(), sum.counted_total()), (Some(10), Some(15)));
        assert_eq!(sum.try_take(6, 20), Err(15));
        assert_eq!(sum.try_take(5, 20), Ok(()));
        assert_eq!(sum.try_take(1, 20), Err(20));
        assert_eq!(sum.try_take(u64::MAX, u64::MAX - 1), Err(20));
        assert_eq!(sum.counted_total(), Some(15));
    }

    #[test]
    fn what_is_taken_during_a_count_is_added_to_its_result() {
        let mut sum = counted(100, 0);
        sum.try_take(7, 1_000).unwrap();
        sum.written(7);
        sum.begin_count();
        sum.try_take(20, 1_000).unwrap();
        sum.written(20);
        assert_eq!(sum.files(), Some(127));
        // The first seven were not used, and of the others an unknown part is in the result.
        sum.end_count(100);
        assert_eq!(sum.files(), Some(120));
        sum.begin_count();
        sum.end_count(110);
        assert_eq!(sum.files(), Some(110));
    }

    #[test]
    fn what_was_taken_and_is_not_written_stays_in_the_sum_through_a_count() {
        let mut sum = counted(0, 0);
        sum.try_take(30, 100).unwrap();
        sum.begin_count();
        sum.end_count(0);
        assert_eq!(sum.try_take(80, 100), Err(30));
        sum.written(30);
        sum.begin_count();
        sum.end_count(30);
        assert_eq!(sum.files(), Some(30));
    }

    #[test]
    fn a_count_during_which_something_was_moved_finds_no_less_than_before() {
        let mut sum = counted(50, 0);
        sum.try_take(30, 1_000).unwrap();
        sum.written(30);
        sum.begin_count();
        sum.moved(None);
        sum.end_count(1);
        assert_eq!((sum.files(), sum.is_uncertain()), (Some(80), true));
        sum.moved(None);
        sum.begin_count();
        sum.end_count(2);
        assert_eq!((sum.files(), sum.is_uncertain()), (Some(2), false));
        // A file gets its final name, of which the count may have seen neither.
        sum.moved(Some(9));
        sum.begin_count();
        sum.moved(Some(7));
        sum.end_count(2);
        assert_eq!(sum.files(), Some(9));
    }
}
