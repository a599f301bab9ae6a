//! The unused part of a prepared shell's stack that holds structures for system calls, and the memory map of a process
//! as `prctl` takes it.

use std::{io, os::unix::ffi::OsStrExt, path::Path};

use crate::{stack::StackImage, syscalls::table_bytes, trace::Tracee};

/// The distance of the structures from the end of the stack. The dynamic loader has used this part, so it is mapped.
const STRUCTURES_OFFSET: u64 = 2048;
const PATH_OFFSET: u64 = 16 * 1024;
const PATH_BYTES: usize = 4096;
/// The length of `struct prctl_mm_map`: 12 addresses, and two values of half a word.
const MAP_WORDS: usize = 13;
/// `exe_fd` is -1: the executable stays the same.
const KEEP_EXECUTABLE: u64 = 0xFFFF_FFFF_0000_0000;
const CONTROL_BYTES: u64 = 64;

/// The addresses of the structures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    end: u64,
}

impl Scratch {
    /// Uses the memory below `end`.
    pub(crate) fn below(end: u64) -> Self {
        Self { end }
    }

    fn at(self, offset: u64) -> u64 {
        self.end - STRUCTURES_OFFSET + offset
    }

    /// The `msghdr` for receiving the standard streams.
    pub(crate) fn message(self) -> u64 {
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

    /// The memory map.
    pub(crate) fn map(self) -> u64 {
        self.at(192)
    }

    /// Where `PR_GET_TID_ADDRESS` stores its result.
    pub(crate) fn tid(self) -> u64 {
        self.at(320)
    }

    /// The system calls of the zygote.
    pub(crate) fn zygote_table(self) -> u64 {
        self.at(384)
    }

    /// The system calls that set up a copy.
    pub(crate) fn copy_table(self) -> u64 {
        self.zygote_table() + table_bytes(8)
    }

    /// The last system calls before the program starts.
    pub(crate) fn last_table(self) -> u64 {
        self.copy_table() + table_bytes(4)
    }

    pub(crate) fn path(self) -> u64 {
        self.end - PATH_OFFSET
    }

    pub(crate) fn write_path(self, tracee: &Tracee, path: &Path) -> io::Result<()> {
        let path = path.as_os_str().as_bytes();
        if path.len() >= PATH_BYTES {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        tracee.write(&[(self.path(), &[path, &[0]].concat())])
    }

    /// Writes the `msghdr`, which all copies use.
    pub(crate) fn write_message(self, tracee: &Tracee) -> io::Result<()> {
        // No address, one vector, a buffer for descriptors.
        let message = [0, 0, self.vector(), 1, self.control(), CONTROL_BYTES, 0].map(u64::to_le_bytes);
        let vector = [self.byte(), 1].map(u64::to_le_bytes);
        tracee.write(&[(self.message(), message.as_flattened()), (self.vector(), vector.as_flattened())])
    }
}

/// The memory map of a process as the kernel reports it, for example to `ps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryMap {
    /// Start and end of the code, then of the data.
    pub(crate) program: [u64; 4],
    /// Start and end of the heap.
    pub(crate) heap: [u64; 2],
    pub(crate) stack: u64,
    /// Start and end of the argument strings, then of the environment strings.
    pub(crate) texts: [u64; 4],
}

impl MemoryMap {
    /// The same map with the strings of a command.
    pub(crate) fn with_texts(&self, image: &StackImage) -> Self {
        let texts = [self.texts[0], image.environment, image.environment, image.end];
        Self { texts, ..self.clone() }
    }

    /// Encodes `struct prctl_mm_map`. The auxiliary vector stays the same.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let words = self.program.iter().chain(&self.heap).chain([&self.stack]).chain(&self.texts);
        words.chain(&[0, KEEP_EXECUTABLE]).flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The arguments of the `prctl` call that installs the map at this address.
    pub(crate) fn arguments(at: u64) -> [u64; 4] {
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
