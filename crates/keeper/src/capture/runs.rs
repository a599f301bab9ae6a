//! Runs of pages, as a delta lists them.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

pub(super) const PAGE_BYTES: u64 = 4096;
/// Each run takes a map in the VMM, which may have 65,530 of them.
const MAX_RUNS: usize = 16_384;
/// Two numbers of 64 bits.
const RUN_BYTES: usize = 16;

/// A range of page numbers.
pub(super) type Run = Range<u64>;

/// The size of the memory in these runs, in bytes.
pub(super) fn bytes(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum::<u64>() * PAGE_BYTES
}

/// The union of runs, in ascending order. If there are too many of them, those with the smallest gaps in between are
/// joined.
pub(super) fn union(mut runs: Vec<Run>) -> Vec<Run> {
    runs.retain(|run| !run.is_empty());
    runs.sort_by_key(|run| run.start);
    let mut max_gap = 0;
    loop {
        let joined = join(&runs, max_gap);
        if joined.len() <= MAX_RUNS {
            return joined;
        }
        max_gap = (max_gap * 2).max(1);
    }
}

/// Joins runs that are at most `max_gap` pages apart.
fn join(sorted: &[Run], max_gap: u64) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in sorted {
        match joined.last_mut() {
            Some(last) if run.start <= last.end + max_gap => last.end = last.end.max(run.end),
            _ => joined.push(run.clone()),
        }
    }
    joined
}

/// Divides runs into at most this number of parts of about the same size. A run may be divided too.
pub(super) fn split(runs: &[Run], parts: usize) -> Vec<Vec<Run>> {
    let pages: u64 = runs.iter().map(|run| run.end - run.start).sum();
    let share = pages.div_ceil(parts as u64).max(1);
    let (mut divided, mut part, mut room) = (Vec::with_capacity(parts), Vec::new(), share);
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let end = run.end.min(at + room);
            part.push(at..end);
            room -= end - at;
            at = end;
            if room == 0 {
                divided.push(std::mem::take(&mut part));
                room = share;
            }
        }
    }
    if !part.is_empty() {
        divided.push(part);
    }
    divided
}

/// The list as the preloaded library reads it: offsets in bytes, begin and end.
pub(super) fn encode(runs: &[Run]) -> Vec<u8> {
    let offsets = runs.iter().flat_map(|run| [run.start * PAGE_BYTES, run.end * PAGE_BYTES]);
    offsets.flat_map(u64::to_ne_bytes).collect()
}

/// Reads a list, which may have been written by anyone.
///
/// # Errors
/// It is no list of ascending runs within a memory of this number of pages.
pub(super) fn read(file: &File, memory_pages: u64) -> io::Result<Vec<Run>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the list of changed pages is invalid");
    let length = usize::try_from(file.metadata()?.len()).map_err(|_| invalid())?;
    if length > MAX_RUNS * RUN_BYTES || length % RUN_BYTES != 0 {
        return Err(invalid());
    }
    let mut list = vec![0; length];
    file.read_exact_at(&mut list, 0)?;
    let (numbers, _) = list.as_chunks::<8>();
    let numbers: Vec<u64> = numbers.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let mut runs: Vec<Run> = Vec::with_capacity(length / RUN_BYTES);
    for pair in numbers.chunks_exact(2) {
        let (begin, end) = (pair[0], pair[1]);
        let after = runs.last().map_or(0, |last| last.end * PAGE_BYTES);
        let is_whole = begin % PAGE_BYTES == 0 && end % PAGE_BYTES == 0;
        if !is_whole || begin < after || end <= begin || end > memory_pages * PAGE_BYTES {
            return Err(invalid());
        }
        runs.push(begin / PAGE_BYTES..end / PAGE_BYTES);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, io::Write};

    use proptest::prelude::*;

    use super::*;

    fn list(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        let good = encode(&[1..2, 4..9]);
        assert_eq!(read(&list(&good), 9).unwrap(), [1..2, 4..9]);
        let of =
            |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
        let page = PAGE_BYTES;
        for (bad, pages) in [
            (good.clone(), 8),
            (good[..good.len() - 1].to_vec(), 9),
            (good[..good.len() - 8].to_vec(), 9),
            (of(&[page, page]), 9),
            (of(&[2 * page, page]), 9),
            (of(&[page, 3 * page, 2 * page, 4 * page]), 9),
            (of(&[1, page]), 9),
            (of(&[0, u64::MAX - page + 1]), 9),
            (vec![0; (MAX_RUNS + 1) * RUN_BYTES], u64::MAX / page),
        ] {
            assert!(read(&list(&bad), pages).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn many_runs_are_joined_by_their_smallest_gaps() {
        let runs: Vec<Run> = (0..3 * MAX_RUNS as u64).map(|at| 3 * at..3 * at + 1).collect();
        let joined = union(runs);
        assert_eq!((joined.len(), joined[0].clone()), (1, 0..9 * MAX_RUNS as u64 - 2));
        let apart: Vec<Run> = (0..MAX_RUNS as u64).map(|at| 2 * at..2 * at + 1).collect();
        assert_eq!(union(apart.clone()), apart);
    }

    proptest! {
        #[test]
        fn a_union_has_the_pages_of_all_runs(runs in prop::collection::vec((0_u64..500, 0_u64..9), 0..60)) {
            let runs: Vec<Run> = runs.into_iter().map(|(begin, pages)| begin..begin + pages).collect();
            let wanted: BTreeSet<u64> = runs.iter().cloned().flatten().collect();
            let joined = union(runs);
            prop_assert_eq!(joined.iter().cloned().flatten().collect::<BTreeSet<u64>>(), wanted);
            prop_assert!(joined.windows(2).all(|pair| pair[0].end < pair[1].start));
            for parts in 1..4 {
                let divided = split(&joined, parts);
                let pages = |part: &Vec<Run>| bytes(part) / PAGE_BYTES;
                let share = bytes(&joined).div_ceil(PAGE_BYTES * parts as u64);
                prop_assert!(divided.len() <= parts && divided.iter().all(|part| pages(part) <= share));
                prop_assert_eq!(union(divided.concat()), joined.clone());
            }
            prop_assert_eq!(read(&list(&encode(&joined)), 600).unwrap(), joined);
        }
    }
}
