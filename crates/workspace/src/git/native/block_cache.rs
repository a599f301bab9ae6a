//! Random access to a file through a block cache.

use std::{collections::HashMap, fs::File, os::unix::fs::FileExt};

/// Bytes per block.
const BLOCK: u64 = 8 << 10;
const MAX_BLOCKS: usize = 64;

/// A file with cached blocks.
#[derive(Debug)]
pub(super) struct CachedFile {
    file: File,
    blocks: HashMap<u64, Vec<u8>>,
}

impl CachedFile {
    pub(super) fn new(file: File) -> Self {
        Self { file, blocks: HashMap::new() }
    }

    /// The cached bytes from this offset on, at least one. `None` at the end of the file.
    pub(super) fn bytes_at(&mut self, at: u64) -> Option<&[u8]> {
        let block = at / BLOCK;
        if !self.blocks.contains_key(&block) {
            if self.blocks.len() == MAX_BLOCKS {
                self.blocks.clear();
            }
            let read = self.read_block(block * BLOCK)?;
            self.blocks.insert(block, read);
        }
        let inside = usize::try_from(at % BLOCK).ok()?;
        self.blocks.get(&block)?.get(inside..).filter(|rest| !rest.is_empty())
    }

    /// The `N` bytes at this offset.
    pub(super) fn array_at<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            let rest = self.bytes_at(at.checked_add(done as u64)?)?;
            let count = rest.len().min(N - done);
            bytes[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        Some(bytes)
    }

    fn read_block(&self, at: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(BLOCK).ok()?];
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], at + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        bytes.truncate(done);
        Some(bytes)
    }
}
