//! The unused end of a waiting shell's stack, where structures for the kernel are put, and the list of its memory,
//! which the kernel keeps.

use std::{io, os::unix::ffi::OsStrExt, path::Path};

use super::{calls::table_bytes, stack::Image, trace::Tracee};

/// How far below the stack's end the structures begin. The dynamic loader has been there, so it is memory.
const STRUCTURES: u64 = 2048;
const PATH: u64 = 16 * 1024;
const PATH_BYTES: usize = 4096;
/// `struct prctl_mm_map`: 12 addresses, and two halves of a word.
const MAP_WORDS: usize = 13;
/// No other program file.
const NO_FILE: u64 = 0xFFFF_FFFF_0000_0000;
const CONTROL_BYTES: u64 = 64;

/// Where each structure is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scratch {
    end: u64,
}

impl Scratch {
    /// Below the end of this stack.
    pub(super) fn below(end: u64) -> Self {
        Self { end }
    }

    fn at(self, offset: u64) -> u64 {
        self.end - STRUCTURES + offset
    }

    /// The message by which a copy takes its streams.
    pub(super) fn message(self) -> u64 {
        self.at(0)
    }

    fn vector(self) -> u64 {
        self.at(64)
    }

    fn byte(self) -> u64 {
        self.at(80)
    }

    fn control(self) -> u64 {
        self.at(96)
    }

    /// Its memory map.
    pub(super) fn map(self) -> u64 {
        self.at(192)
    }

    /// Where the kernel says where it keeps its thread's id.
    pub(super) fn tid(self) -> u64 {
        self.at(320)
    }

    /// Calls of the zygote.
    pub(super) fn zygotes_table(self) -> u64 {
        self.at(384)
    }

    /// Calls by which a copy is equipped.
    pub(super) fn copys_table(self) -> u64 {
        self.zygotes_table() + table_bytes(8)
    }

    /// Calls between the command and the program's beginning.
    pub(super) fn last_table(self) -> u64 {
        self.copys_table() + table_bytes(4)
    }

    pub(super) fn path(self) -> u64 {
        self.end - PATH
    }

    /// Puts down a path.
    pub(super) fn write_path(self, tracee: &Tracee, path: &Path) -> io::Result<()> {
        let path = path.as_os_str().as_bytes();
        if path.len() >= PATH_BYTES {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        tracee.write(&[(self.path(), &[path, &[0]].concat())])
    }

    /// Puts down the message, which all copies share.
    pub(super) fn write_message(self, tracee: &Tracee) -> io::Result<()> {
        // No address to send to, one vector, room for descriptors.
        let message = [0, 0, self.vector(), 1, self.control(), CONTROL_BYTES, 0].map(u64::to_le_bytes);
        let vector = [self.byte(), 1].map(u64::to_le_bytes);
        tracee.write(&[(self.message(), message.as_flattened()), (self.vector(), vector.as_flattened())])
    }
}

/// Where a process has what, as the kernel has it: what a listing of processes shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemoryMap {
    /// Beginning and end of its code, then of its data.
    pub(super) program: [u64; 4],
    /// Beginning and end of its heap.
    pub(super) heap: [u64; 2],
    pub(super) stack: u64,
    /// Beginning and end of the arguments' texts, then of the environment's.
    pub(super) texts: [u64; 4],
}

impl MemoryMap {
    /// The same with the texts of a command.
    pub(super) fn with_texts(&self, image: &Image) -> Self {
        let texts = [self.texts[0], image.environment, image.environment, image.end];
        Self { texts, ..self.clone() }
    }

    /// As `prctl` takes it. The kernel's notes stay.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let words = self.program.iter().chain(&self.heap).chain([&self.stack]).chain(&self.texts);
        words.chain(&[0, NO_FILE]).flat_map(|word| word.to_le_bytes()).collect()
    }

    /// What `prctl` is called with to put such a map, which lies at this address, in place of the kernel's.
    pub(super) fn arguments(at: u64) -> [u64; 4] {
        [libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64, at, (MAP_WORDS * size_of::<u64>()) as u64]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_as_long_as_the_kernel_wants_it() {
        let map = MemoryMap { program: [1, 2, 3, 4], heap: [5, 6], stack: 7, texts: [8, 9, 10, 11] };
        let bytes = map.to_bytes();
        assert_eq!(bytes.len(), MAP_WORDS * size_of::<u64>());
        assert_eq!(bytes[..8], 1u64.to_le_bytes());
        assert_eq!(bytes[100..], (-1i32).to_le_bytes());
    }
}
