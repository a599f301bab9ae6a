//! The unused end of a waiting shell's stack, where structures for the kernel are put, and the list of its memory,
//! which the kernel keeps.

use std::{io, os::unix::ffi::OsStrExt, path::Path};

use super::{
    stack::Image,
    trace::{Attention, Registers, Tracee},
};

/// How far below the stack's end the structures begin. The dynamic loader has been there, so it is memory.
const STRUCTURES: u64 = 2048;
const PATH: u64 = 16 * 1024;
const PATH_BYTES: usize = 4096;
/// `struct prctl_mm_map`: 12 addresses, and two halves of a word.
const MAP_WORDS: usize = 13;
/// No other program file.
const NO_FILE: u64 = 0xFFFF_FFFF_0000_0000;

/// Where each structure begins.
const MESSAGE: u64 = 0;
const VECTOR: u64 = 64;
const BYTE: u64 = 80;
const CONTROL: u64 = 96;
const CONTROL_BYTES: u64 = 64;
const MAP: u64 = 192;
const TID: u64 = 320;

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

/// The address of the message by which a copy takes its streams.
pub(super) fn message(registers: &Registers) -> u64 {
    at(registers, MESSAGE)
}

/// The address of its memory map.
pub(super) fn map(registers: &Registers) -> u64 {
    at(registers, MAP)
}

/// Puts down a path, and returns its address.
pub(super) fn write_path(tracee: &Tracee, registers: &Registers, path: &Path) -> io::Result<u64> {
    let path = path.as_os_str().as_bytes();
    if path.len() >= PATH_BYTES {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let address = registers.rsp - PATH;
    tracee.write(&[(address, &[path, &[0]].concat())])?;
    Ok(address)
}

/// Writes what all copies share, and returns where the process keeps its thread's id, and its memory as it is now.
/// Fails where the kernel would take no map from it.
pub(super) fn furnish(
    attention: &Attention,
    tracee: &Tracee,
    registers: &Registers,
    mut memory: MemoryMap,
) -> io::Result<(u64, MemoryMap)> {
    memory.heap[1] = tracee.call(attention, registers, libc::SYS_brk, &[0])? as u64;
    // No address to send to, one vector, room for descriptors.
    let message =
        [0, 0, at(registers, VECTOR), 1, at(registers, CONTROL), CONTROL_BYTES, 0].map(u64::to_le_bytes);
    let vector = [at(registers, BYTE), 1].map(u64::to_le_bytes);
    tracee.write(&[
        (at(registers, MESSAGE), message.as_flattened()),
        (at(registers, VECTOR), vector.as_flattened()),
        (at(registers, MAP), &memory.to_bytes()),
    ])?;
    tracee.call(attention, registers, libc::SYS_prctl, &MemoryMap::arguments(at(registers, MAP)))?;
    let tid = at(registers, TID);
    tracee.call(attention, registers, libc::SYS_prctl, &[libc::PR_GET_TID_ADDRESS as u64, tid])?;
    let mut address = [0; size_of::<u64>()];
    tracee.read(tid, &mut address)?;
    Ok((u64::from_le_bytes(address), memory))
}

fn at(registers: &Registers, offset: u64) -> u64 {
    registers.rsp - STRUCTURES + offset
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
