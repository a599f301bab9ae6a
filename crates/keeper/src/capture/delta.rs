//! The changed pages of a guest's memory, copied into sealed memory files.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    thread,
};

use rustix::fs::{FallocateFlags, Mode, fallocate, ftruncate};

use super::{
    guest_memory::GuestMemory,
    runs::{self, PAGE_BYTES, Run},
};

/// How much memory is copied at once: it stays in the processor's cache between the read and the write.
const BLOCK_BYTES: u64 = 256 << 10;
/// Threads that copy. Writes to one file gain nothing from a third.
const THREADS: usize = 2;
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// The files of a delta.
#[derive(Debug)]
pub(crate) struct DeltaFiles {
    /// The pages, at the offsets that they have in the guest's memory. Pages of zeros are holes.
    pub(crate) data: File,
    /// Which pages those are.
    pub(crate) pages: File,
}

/// A delta whose pages can be copied again.
#[derive(Debug)]
pub(super) struct MemoryCopy {
    data: File,
}

impl MemoryCopy {
    /// # Errors
    /// No memory or no descriptor is available.
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self { data: memory_file("skep-delta")? })
    }

    /// Copies these pages of a guest's memory, over those of an earlier copy.
    ///
    /// # Errors
    /// The process has ended, or no memory is available.
    pub(super) fn copy(&self, memory: &GuestMemory, runs: &[Run]) -> io::Result<()> {
        ftruncate(&self.data, memory.bytes())?;
        let parts = runs::split(runs, THREADS);
        thread::scope(|scope| {
            let copies: Vec<_> =
                parts.iter().map(|part| scope.spawn(|| copy_runs(memory, part, &self.data))).collect();
            copies.into_iter().try_for_each(|copy| {
                copy.join().unwrap_or_else(|_| Err(io::Error::other("a thread that copied memory panicked")))
            })
        })
    }

    /// Seals the copy of these pages. Pages of an earlier copy that are not among them are not part of the delta.
    ///
    /// # Errors
    /// No memory is available.
    pub(super) fn seal(self, runs: &[Run]) -> io::Result<DeltaFiles> {
        let mut pages = memory_file("skep-pages")?;
        pages.write_all(&runs::encode(runs))?;
        skep_sealed_memory::seal(&self.data)?;
        skep_sealed_memory::seal(&pages)?;
        Ok(DeltaFiles { data: self.data, pages })
    }

    /// What it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        memory_bytes(&self.data)
    }
}

impl DeltaFiles {
    /// What the files take, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        memory_bytes(&self.data) + memory_bytes(&self.pages)
    }
}

fn memory_bytes(file: &File) -> u64 {
    // stat(2) counts blocks of 512 bytes.
    file.metadata().map_or(0, |found| found.blocks() * 512)
}

fn copy_runs(memory: &GuestMemory, runs: &[Run], to: &File) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    for run in runs {
        let (mut at, end) = (run.start * PAGE_BYTES, run.end * PAGE_BYTES);
        while at < end {
            let block = &mut block[..(end - at).min(BLOCK_BYTES) as usize];
            memory.read_at(at, block)?;
            write_pages(to, at, block)?;
            at += block.len() as u64;
        }
    }
    Ok(())
}

/// Writes the pages that are not zero, and makes holes of the others.
fn write_pages(file: &File, mut at: u64, block: &[u8]) -> io::Result<()> {
    let pages = block.as_chunks::<{ PAGE_BYTES as usize }>().0;
    for run in pages.chunk_by(|one, next| (*one == ZEROS) == (*next == ZEROS)) {
        let bytes = run.as_flattened();
        if run[0] == ZEROS {
            // An earlier copy may have data here.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, at, bytes.len() as u64)?;
        } else {
            file.write_all_at(bytes, at)?;
        }
        at += bytes.len() as u64;
    }
    Ok(())
}

/// VMMs of any user map it by an inherited descriptor.
fn memory_file(name: &str) -> io::Result<File> {
    skep_sealed_memory::create(name, Mode::from_raw_mode(0o444))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_take_no_memory() {
        let page = |byte: u8| vec![byte; ZEROS.len()];
        let block = [page(1), page(0), page(0), page(2), page(3), page(0)].concat();
        let file = memory_file("test").unwrap();
        ftruncate(&file, 10 * PAGE_BYTES).unwrap();
        write_pages(&file, 2 * PAGE_BYTES, &block).unwrap();
        let mut read = vec![9; block.len()];
        file.read_exact_at(&mut read, 2 * PAGE_BYTES).unwrap();
        assert_eq!(read, block);
        assert_eq!(file.metadata().unwrap().blocks() * 512, 3 * PAGE_BYTES);
        write_pages(&file, 0, &page(0)).unwrap();
        write_pages(&file, 0, &page(7)).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * 512, 4 * PAGE_BYTES);
    }

    #[test]
    fn a_second_copy_replaces_each_page_of_the_first() {
        let page = |byte: u8| [byte; ZEROS.len()];
        let mut guest = [page(1), page(2), page(0), page(3), page(4)];
        let address = guest.as_ptr() as u64;
        let copy = MemoryCopy::create().unwrap();
        let all = 0..guest.len() as u64;
        copy.copy(&GuestMemory::of(std::process::id(), address, all.end), std::slice::from_ref(&all))
            .unwrap();
        guest[1] = page(0);
        guest[2] = page(5);
        guest[4] = page(6);
        copy.copy(&GuestMemory::of(std::process::id(), address, all.end), &[0..3, 4..5]).unwrap();
        let delta = copy.seal(&[0..3, 4..5]).unwrap();
        let mut found = vec![9; guest.len() * ZEROS.len()];
        delta.data.read_exact_at(&mut found, 0).unwrap();
        assert!(found == guest.as_flattened());
        assert_eq!(memory_bytes(&delta.data), 4 * PAGE_BYTES);
    }
}
