//! Bytes that are poured into a file, however many. What is large goes past the kernel's cache: it would drive out all else
//! that is kept there, and to keep each page takes a small machine longer than to write it.

use std::{
    fs::File,
    io::{self, Write},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
    system::sysinfo,
};

/// What is written past the cache at once, in bytes.
const BLOCK_BYTES: usize = 1 << 20;
/// Where blocks begin, in memory and in the file: no disk in use has larger sectors (open(2), `O_DIRECT`).
const ALIGNMENT: usize = 4096;
/// The part of the machine's memory from which on a file is large.
const LARGE: u64 = 16;

/// A file that is written from its beginning.
pub(super) struct Pour {
    /// How much of what is to come still goes into the cache.
    cached: u64,
    block: Option<Block>,
}

impl Pour {
    pub(super) fn new() -> Self {
        let machine = sysinfo();
        Self::caching(machine.totalram.saturating_mul(machine.mem_unit.into()) / LARGE)
    }

    fn caching(bytes: u64) -> Self {
        Self { cached: bytes - bytes % ALIGNMENT as u64, block: None }
    }

    /// Adds these bytes. They are in the file once it is [finished](Self::finish).
    pub(super) fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let now = usize::try_from(self.cached).unwrap_or(usize::MAX).min(bytes.len());
        let (now, mut later) = bytes.split_at(now);
        file.write_all(now)?;
        self.cached -= now.len() as u64;
        while !later.is_empty() {
            let block = self.block.get_or_insert_with(Block::new);
            later = block.fill(later);
            if block.is_full() {
                go_past_the_cache(file, true)?;
                block.write(file)?;
            }
        }
        Ok(())
    }

    /// Writes what is left.
    pub(super) fn finish(&mut self, file: &mut File) -> io::Result<()> {
        let Some(mut block) = self.block.take() else { return Ok(()) };
        // Its end may be no whole sector.
        go_past_the_cache(file, false)?;
        block.write(file)
    }
}

/// Bytes in memory where a disk can take them from.
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

    /// Takes as many of these bytes as it has room for, and returns the others.
    fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
        self.memory[self.begin + self.filled..][..now.len()].copy_from_slice(now);
        self.filled += now.len();
        later
    }

    /// Writes all of it, and is empty.
    fn write(&mut self, file: &mut File) -> io::Result<()> {
        let mut rest = &self.memory[self.begin..][..self.filled];
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A file system with demands of its own.
                Err(error) if is_invalid(&error) && go_past_the_cache(file, false)? => {}
                Err(error) => return Err(error),
            }
        }
        self.filled = 0;
        Ok(())
    }
}

/// Sets whether writes go past the cache, and returns whether that was otherwise. Some file systems have nothing else.
fn go_past_the_cache(file: &File, past: bool) -> io::Result<bool> {
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
        let (mut file, mut pour) = (named.reopen().unwrap(), Pour::caching(caching));
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
                // The one may be on a disk, the other is in memory, where nothing can go past the cache.
                for folder in [".", "/dev/shm"] {
                    assert!(pour(&pieces, caching, folder) == bytes[..length], "{length} {caching} {folder}");
                }
            }
        }
    }

    #[test]
    fn a_disk_that_is_full_says_so() {
        let mut file = File::options().write(true).open("/dev/full").unwrap();
        let mut pour = Pour::caching(0);
        pour.write(&mut file, &[0; 10]).unwrap();
        assert_eq!(pour.finish(&mut file).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
