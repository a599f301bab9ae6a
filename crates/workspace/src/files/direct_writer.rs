//! Writes a file of any length. Large files bypass the page cache: they would evict everything else, and on a small
//! machine caching a page takes longer than writing it.

use std::{
    fs::File,
    io::{self, Write},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
    system::sysinfo,
};

/// The size of a direct write, in bytes.
const BLOCK_BYTES: usize = 1 << 20;
/// The alignment of direct writes in memory and in the file: no disk in use has larger sectors (open(2), `O_DIRECT`).
const ALIGNMENT: usize = 4096;
/// A file is large from 1/16 of the memory of the machine.
const LARGE_FILE_DIVISOR: u64 = 16;

/// Writes a file from its beginning.
pub(super) struct DirectWriter {
    /// How many of the next bytes still go through the page cache.
    cached_left: u64,
    block: Option<Block>,
}

impl DirectWriter {
    pub(super) fn new() -> Self {
        let machine = sysinfo();
        Self::with_cached_bytes(machine.totalram.saturating_mul(machine.mem_unit.into()) / LARGE_FILE_DIVISOR)
    }

    fn with_cached_bytes(bytes: u64) -> Self {
        Self { cached_left: bytes - bytes % ALIGNMENT as u64, block: None }
    }

    /// Appends bytes. All of them are in the file only after [`Self::finish`].
    pub(super) fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let now = usize::try_from(self.cached_left).unwrap_or(usize::MAX).min(bytes.len());
        let (now, mut later) = bytes.split_at(now);
        file.write_all(now)?;
        self.cached_left -= now.len() as u64;
        while !later.is_empty() {
            let block = self.block.get_or_insert_with(Block::new);
            later = block.fill(later);
            if block.is_full() {
                set_direct_io(file, true)?;
                block.write(file)?;
            }
        }
        Ok(())
    }

    /// Writes the buffered rest.
    pub(super) fn finish(&mut self, file: &mut File) -> io::Result<()> {
        let Some(mut block) = self.block.take() else { return Ok(()) };
        // The rest need not be a whole number of sectors.
        set_direct_io(file, false)?;
        block.write(file)
    }
}

/// A buffer that is aligned for direct writes.
struct Block {
    memory: Vec<u8>,
    begin: usize,
    filled: usize,
}

impl Block {
    fn new() -> Self {
        let memory = vec![0; BLOCK_BYTES + ALIGNMENT];
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, begin, filled: 0 }
    }

    fn is_full(&self) -> bool {
        self.filled == BLOCK_BYTES
    }

    /// Copies as many bytes as fit, and returns the rest.
    fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
        self.memory[self.begin + self.filled..][..now.len()].copy_from_slice(now);
        self.filled += now.len();
        later
    }

    /// Writes the whole block and empties it.
    fn write(&mut self, file: &mut File) -> io::Result<()> {
        let mut rest = &self.memory[self.begin..][..self.filled];
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The file system has stricter rules for direct writes: write through the cache instead.
                Err(error) if is_invalid(&error) && set_direct_io(file, false)? => {}
                Err(error) => return Err(error),
            }
        }
        self.filled = 0;
        Ok(())
    }
}

/// Sets or clears `O_DIRECT`, and returns whether that changed. File systems without support are left as they are.
fn set_direct_io(file: &File, past: bool) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    if flags.contains(OFlags::DIRECT) == past {
        return Ok(false);
    }
    match fcntl_setfl(file, flags ^ OFlags::DIRECT) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pour(pieces: &[&[u8]], caching: u64, folder: &str) -> Vec<u8> {
        let named = tempfile::NamedTempFile::new_in(folder).unwrap();
        let (mut file, mut pour) = (named.reopen().unwrap(), DirectWriter::with_cached_bytes(caching));
        for piece in pieces {
            pour.write(&mut file, piece).unwrap();
        }
        pour.finish(&mut file).unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
        std::fs::read(named.path()).unwrap()
    }

    #[test]
    fn all_arrives_however_much_of_it_is_cached() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 4097).map(|at| (at % 251) as u8).collect();
        for length in [0, 1, 4096, BLOCK_BYTES, BLOCK_BYTES + 1, bytes.len()] {
            let pieces: Vec<&[u8]> = bytes[..length].chunks(100_000).collect();
            for caching in [0, 5_000, 1 << 20, u64::MAX] {
                // The current folder may be on a disk; `/dev/shm` is in memory, where direct I/O is not supported.
                for folder in [".", "/dev/shm"] {
                    assert!(pour(&pieces, caching, folder) == bytes[..length], "{length} {caching} {folder}");
                }
            }
        }
    }

    #[test]
    fn a_full_disk_is_reported_as_such() {
        let mut file = File::options().write(true).open("/dev/full").unwrap();
        let mut pour = DirectWriter::with_cached_bytes(0);
        pour.write(&mut file, &[0; 10]).unwrap();
        assert_eq!(pour.finish(&mut file).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
