//! User ids for jailed processes. Each process gets an id that no other running one has.

use std::{collections::BTreeSet, fmt, fs};

use crate::Error;

/// A range of user ids, and of group ids with the same numbers, reserved for jailed processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    pub base: u32,
    /// At least 1.
    pub count: u32,
}

impl UidRange {
    /// The first id above those that systemd assigns to containers (see its "Users, Groups, UIDs and GIDs").
    pub const DEFAULT_BASE: u32 = 0x7000_0000;

    /// Checks the range against the users, groups and subordinate ids of this machine.
    ///
    /// # Errors
    /// It overlaps with one of them, or exceeds the valid ids.
    pub fn check(&self) -> Result<(), Error> {
        let taken = |owner: String| Error::UidsTaken { range: self.to_string(), owner };
        // Excludes 4294967295, which means "unchanged" in system calls.
        if self.base == 0 || self.count == 0 || self.base.checked_add(self.count).is_none() {
            return Err(taken("nobody: they must lie between 1 and 4294967294".to_owned()));
        }
        for (path, reading) in ID_FILES {
            // The files of subordinate ids may be missing.
            let text = fs::read_to_string(path).unwrap_or_default();
            if let Some(owner) = self.owner_in(&text, reading) {
                return Err(taken(format!("`{owner}` in {path}")));
            }
        }
        Ok(())
    }

    fn owner_in<'a>(&self, text: &'a str, reading: fn(&[&str]) -> Option<(u32, u32)>) -> Option<&'a str> {
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let (base, count) = reading(&fields)?;
            let (ours, theirs) = (u64::from(self.base), u64::from(base));
            let overlap = ours < theirs + u64::from(count) && theirs < ours + u64::from(self.count);
            overlap.then_some(fields[0])
        })
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.base, u64::from(self.base) + u64::from(self.count) - 1)
    }
}

type LineParser = fn(&[&str]) -> Option<(u32, u32)>;

const ID_FILES: [(&str, LineParser); 4] = [
    ("/etc/passwd", single_id),
    ("/etc/group", single_id),
    ("/etc/subuid", id_range),
    ("/etc/subgid", id_range),
];

/// `name:password:id:...`
fn single_id(fields: &[&str]) -> Option<(u32, u32)> {
    Some((fields.get(2)?.parse().ok()?, 1))
}

/// `name:first:count`
fn id_range(fields: &[&str]) -> Option<(u32, u32)> {
    Some((fields.get(1)?.parse().ok()?, fields.get(2)?.parse().ok()?))
}

/// Assigns the ids of a range. A released id is reused as late as possible.
#[derive(Debug, Clone)]
pub struct UidPool {
    range: UidRange,
    next: u32,
    taken: BTreeSet<u32>,
}

impl UidPool {
    pub fn new(range: UidRange) -> Self {
        Self { range, next: 0, taken: BTreeSet::new() }
    }

    /// Takes a free id.
    ///
    /// # Errors
    /// All are in use.
    pub fn take(&mut self) -> Result<u32, Error> {
        for _ in 0..self.range.count {
            let uid = self.range.base + self.next;
            self.next = (self.next + 1) % self.range.count;
            if self.taken.insert(uid) {
                return Ok(uid);
            }
        }
        Err(Error::UidsExhausted(self.range.count))
    }

    /// Takes the id of an adopted process. `false` if it is out of range or already taken.
    pub fn adopt(&mut self, uid: u32) -> bool {
        let Some(number) = uid.checked_sub(self.range.base).filter(|number| *number < self.range.count)
        else {
            return false;
        };
        // Smaller ids may have been used recently.
        self.next = self.next.max((number + 1) % self.range.count);
        self.taken.insert(uid)
    }

    /// Releases an id. Call it when no process with this id exists any more.
    pub fn release(&mut self, uid: u32) {
        self.taken.remove(&uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_id_is_reused_as_late_as_possible() {
        let mut pool = UidPool::new(UidRange { base: 100, count: 3 });
        assert_eq!(pool.take().unwrap(), 100);
        pool.release(100);
        assert_eq!(pool.take().unwrap(), 101);
        assert_eq!(pool.take().unwrap(), 102);
        assert_eq!(pool.take().unwrap(), 100);
        assert!(matches!(pool.take(), Err(Error::UidsExhausted(3))));
        pool.release(101);
        assert_eq!(pool.take().unwrap(), 101);
    }

    #[test]
    fn an_id_that_is_in_use_already_is_not_given_away() {
        let mut pool = UidPool::new(UidRange { base: 100, count: 3 });
        assert!(pool.adopt(101) && !pool.adopt(101));
        assert!(!pool.adopt(99) && !pool.adopt(103));
        assert_eq!((pool.take().unwrap(), pool.take().unwrap()), (102, 100));
        assert!(pool.take().is_err());
    }

    #[test]
    fn a_range_that_overlaps_with_other_ids_is_detected() {
        let range = UidRange { base: 1000, count: 100 };
        for (text, reading, owner) in [
            ("root:x:0:0\nann:x:1099:1099", single_id as LineParser, Some("ann")),
            ("ann:x:1100:1100", single_id, None),
            ("ann:900:101", id_range, Some("ann")),
            ("ann:900:100\nbob:1100:65536", id_range, None),
            ("ann:4294901760:65535", id_range, None),
        ] {
            assert_eq!(range.owner_in(text, reading), owner, "{text}");
        }
    }

    #[test]
    fn the_number_that_means_nobody_is_no_id() {
        assert!(UidRange { base: u32::MAX - 1, count: 2 }.check().is_err());
        assert!(UidRange { base: 0, count: 1 }.check().is_err());
    }
}
