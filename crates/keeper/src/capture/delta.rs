//! The changed pages of a guest's memory, copied into sealed memory files.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    thread,
};

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};

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

impl DeltaFiles {
    /// Copies these pages of a guest's memory.
    ///
    /// # Errors
    /// The process has ended, or no memory is available.
    pub(super) fn copy(memory: &GuestMemory, runs: &[Run]) -> io::Result<Self> {
        let data = memory_file("skep-delta")?;
        ftruncate(&data, memory.bytes())?;
        let parts = runs::split(runs, THREADS);
        thread::scope(|scope| {
            let copies: Vec<_> =
                parts.iter().map(|part| scope.spawn(|| copy_runs(memory, part, &data))).collect();
            copies.into_iter().try_for_each(|copy| {
                copy.join().unwrap_or_else(|_| Err(io::Error::other("a thread that copied memory panicked")))
            })
        })?;
        let mut pages = memory_file("skep-pages")?;
        pages.write_all(&runs::encode(runs))?;
        seal(&data)?;
        seal(&pages)?;
        Ok(Self { data, pages })
    }

    /// What the files take, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // stat(2) counts blocks of 512 bytes.
        [&self.data, &self.pages]
            .iter()
            .map(|file| file.metadata().map_or(0, |found| found.blocks() * 512))
            .sum()
    }
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

/// Writes the pages that are not zero.
fn write_pages(file: &File, at: u64, block: &[u8]) -> io::Result<()> {
    let mut begin = 0;
    for (number, page) in block.chunks(ZEROS.len()).enumerate() {
        if page == ZEROS {
            let end = number * ZEROS.len();
            file.write_all_at(&block[begin..end], at + begin as u64)?;
            begin = end + ZEROS.len();
        }
    }
    match block.get(begin..) {
        Some(rest) if !rest.is_empty() => file.write_all_at(rest, at + begin as u64),
        _ => Ok(()),
    }
}

/// VMMs of any user map it by an inherited descriptor.
fn memory_file(name: &str) -> io::Result<File> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&file, Mode::from_raw_mode(0o444))?;
    Ok(file.into())
}

fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, seals)?)
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
}
