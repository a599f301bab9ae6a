//! The checksum of a sparse file, for which only its data is read.
//!
//! It covers the content alone: pages of zeros count as holes, so that a copy has the same checksum on a file system that
//! keeps other extents, or none.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, path::Path};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};
use sha2::{Digest, Sha256};

const PAGE_BYTES: usize = 4096;
const PAGE_OF_ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
/// Large enough that the time for hashing dominates the time for reading. A multiple of a page.
const BLOCK_BYTES: usize = 1 << 20;

/// The errors of [`checksum`]. Only `Read` means that the file is damaged.
pub(crate) enum ChecksumError {
    Read(io::Error),
    Copy(io::Error),
}

/// The checksum of a file, in hex.
///
/// # Errors
/// Reading failed.
pub fn checksum_of(path: &Path) -> io::Result<String> {
    checksum(&File::open(path)?, |_, _| Ok(()))
        .map_err(|(ChecksumError::Read(error) | ChecksumError::Copy(error))| error)
}

/// Copies a sparse file to a new one, which is written to disk then, and returns the checksum of both. Holes and pages of
/// zeros stay holes.
///
/// # Errors
/// Reading or writing failed, or there is a file already.
pub fn copy_sparse(source: &File, to: &Path) -> io::Result<String> {
    let target = File::create_new(to)?;
    target.set_len(source.metadata()?.len())?;
    let found = checksum(source, |at, bytes| target.write_all_at(bytes, at))
        .map_err(|(ChecksumError::Read(error) | ChecksumError::Copy(error))| error)?;
    target.sync_all()?;
    Ok(found)
}

/// Hashes the file, and passes its pages that are not zero to `copy`, with their offset and in ascending order.
pub(crate) fn checksum(
    file: &File,
    mut copy: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<String, ChecksumError> {
    let length = file.metadata().map_err(ChecksumError::Read)?.len();
    let mut hasher = RunHasher::default();
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while let Some(extent) = next_extent(file, at, length).map_err(ChecksumError::Read)? {
        at = extent.start;
        while at < extent.end {
            let size = usize::try_from(extent.end - at).map_or(BLOCK_BYTES, |rest| rest.min(BLOCK_BYTES));
            file.read_exact_at(&mut block[..size], at).map_err(ChecksumError::Read)?;
            for (begin, bytes) in runs(&block[..size]) {
                hasher.add(at + begin, bytes);
                copy(at + begin, bytes).map_err(ChecksumError::Copy)?;
            }
            at += size as u64;
        }
    }
    Ok(hasher.finish(length))
}

/// The next extent of data that begins at `at` or later, extended to whole pages. `None` if only a hole follows.
fn next_extent(file: &File, at: u64, length: u64) -> io::Result<Option<Range<u64>>> {
    if at >= length {
        return Ok(None);
    }
    let begin = match seek(file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        other => other?,
    };
    let end = seek(file, SeekFrom::Hole(begin))?;
    // Blocks of a file system may be smaller than a page, and a file may end within one.
    let page = PAGE_BYTES as u64;
    let extent = (begin - begin % page).max(at)..end.next_multiple_of(page).min(length);
    Ok((!extent.is_empty()).then_some(extent))
}

/// The longest runs of pages that are not zero, with their offsets. The last page may be a part of one.
fn runs(block: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_zero = |page: &[u8]| *page == PAGE_OF_ZEROS[..page.len()];
        let bytes_of = |pages: usize, from: usize| (pages * PAGE_BYTES).min(block.len() - from);
        at += bytes_of(block[at..].chunks(PAGE_BYTES).take_while(|page| is_zero(page)).count(), at);
        let begin = at;
        at += bytes_of(block[at..].chunks(PAGE_BYTES).take_while(|page| !is_zero(page)).count(), at);
        (begin < at).then(|| (begin as u64, &block[begin..at]))
    })
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// Hashes the runs of data apart from their layout, so that the bytes reach the hash function in large pieces. The layout
/// determines which bytes belong to which run.
#[derive(Default)]
struct RunHasher {
    data: Sha256,
    layout: Sha256,
    /// The run that the next bytes may continue.
    run: Range<u64>,
}

impl RunHasher {
    fn add(&mut self, at: u64, bytes: &[u8]) {
        if self.run.end != at {
            self.end_run();
            self.run = at..at;
        }
        self.run.end += bytes.len() as u64;
        self.data.update(bytes);
    }

    fn end_run(&mut self) {
        if !self.run.is_empty() {
            self.layout.update(self.run.start.to_le_bytes());
            self.layout.update((self.run.end - self.run.start).to_le_bytes());
        }
    }

    fn finish(mut self, length: u64) -> String {
        self.end_run();
        self.layout.update(length.to_le_bytes());
        let both = Sha256::new().chain_update(self.layout.finalize()).chain_update(self.data.finalize());
        hex(&both.finalize())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checksum_of_file(file: &File) -> String {
        checksum(file, |_, _| Ok(())).unwrap_or_else(|_| panic!("the file cannot be read"))
    }

    /// A sparse file with these bytes at these offsets.
    fn file(length: u64, parts: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        for (at, bytes) in parts {
            file.write_all_at(bytes, *at).unwrap();
        }
        file
    }

    #[test]
    fn bytes_that_moved_into_a_hole_change_the_checksum() {
        let page = [7; PAGE_BYTES];
        let files = [
            file(5 * 4096, &[(4096, &page)]),
            file(5 * 4096, &[(2 * 4096, &page)]),
            file(5 * 4096, &[(4096, &page), (3 * 4096, &page)]),
            file(5 * 4096, &[(4096, &page), (2 * 4096, &page)]),
            file(5 * 4096, &[(4096 + 1, &page)]),
        ];
        let found: std::collections::BTreeSet<String> = files.iter().map(checksum_of_file).collect();
        assert_eq!(found.len(), files.len());
    }

    #[test]
    fn a_file_that_was_cut_short_in_a_hole_or_in_data_has_another_checksum() {
        let whole = file(1 << 20, &[(4096, b"data")]);
        let before = checksum_of_file(&whole);
        for length in [(1 << 20) - 1, 5000, 4099, 4096, 0] {
            whole.set_len(length).unwrap();
            assert_ne!(checksum_of_file(&whole), before, "{length}");
        }
        // Control: the same length, and the bytes that were cut off.
        whole.set_len(1 << 20).unwrap();
        whole.write_all_at(b"data", 4096).unwrap();
        assert_eq!(checksum_of_file(&whole), before);
    }

    // Reading the whole file would take an hour.
    #[test]
    fn holes_are_not_read() {
        let length = 4 << 40;
        let one = file(length, &[(3 << 40, b"data")]);
        let mut copied = Vec::new();
        let copy = |at, bytes: &[u8]| {
            copied.push((at, bytes.len()));
            Ok(())
        };
        let found = checksum(&one, copy).unwrap_or_else(|_| panic!("the file cannot be read"));
        assert_eq!(copied, [(3 << 40, PAGE_BYTES)]);
        assert_ne!(found, checksum_of_file(&file(length, &[])));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_sparse_file_and_its_filled_copy_have_the_same_checksum(
            length in 1_u64..3_000_000,
            parts in prop::collection::vec((0_u64..3_000_000, 1_usize..40_000, 0_u8..3), 0..8),
            flipped in any::<prop::sample::Index>(),
        ) {
            let sparse = file(length, &[]);
            for (at, size, byte) in parts {
                let size = size.min(usize::try_from(length.saturating_sub(at)).unwrap());
                sparse.write_all_at(&vec![byte; size], at).unwrap();
            }
            let mut content = vec![0; usize::try_from(length).unwrap()];
            sparse.read_exact_at(&mut content, 0).unwrap();
            let filled = file(0, &[(0, &content)]);
            let copied = file(length, &[]);
            let wanted = checksum(&sparse, |at, bytes| copied.write_all_at(bytes, at)).ok();
            prop_assert_eq!(Some(checksum_of_file(&filled)), wanted.clone());
            let mut read = vec![0; content.len()];
            copied.read_exact_at(&mut read, 0).unwrap();
            prop_assert!(read == content);
            let at = flipped.index(content.len());
            filled.write_all_at(&[content[at] ^ 1], at as u64).unwrap();
            prop_assert_ne!(Some(checksum_of_file(&filled)), wanted);
        }
    }
}
