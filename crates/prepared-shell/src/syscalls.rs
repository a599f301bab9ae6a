//! Executes system calls in a traced process. A short routine is written into the unused end of the last code page of
//! its program; it makes all calls that a table lists and then jumps to the address at the end of the table.

use std::io;

use crate::trace::{self, Registers, SigchldBlock, Tracee};

const WORD: usize = size_of::<u64>();
/// The number of the call, five arguments, the result.
const ENTRY_WORDS: usize = 7;
const ENTRY_BYTES: u64 = (ENTRY_WORDS * WORD) as u64;
/// The end of a table. The value of `rdx` and the address to jump to follow.
const TABLE_END: u64 = u64::MAX;

/// `rbx` points to the table.
const ROUTINE: [u8; 48] = [
    0x48, 0x8B, 0x03, // next: mov rax, [rbx]
    0x48, 0x85, 0xC0, // test rax, rax
    0x78, 0x20, // js done
    0x48, 0x8B, 0x7B, 0x08, // mov rdi, [rbx + 8]
    0x48, 0x8B, 0x73, 0x10, // mov rsi, [rbx + 16]
    0x48, 0x8B, 0x53, 0x18, // mov rdx, [rbx + 24]
    0x4C, 0x8B, 0x53, 0x20, // mov r10, [rbx + 32]
    0x4C, 0x8B, 0x43, 0x28, // mov r8, [rbx + 40]
    0x0F, 0x05, // syscall
    0x48, 0x89, 0x43, 0x30, // mov [rbx + 48], rax
    0x48, 0x83, 0xC3, 0x38, // add rbx, 56
    0xEB, 0xD8, // jmp next
    0x48, 0x8B, 0x53, 0x08, // done: mov rdx, [rbx + 8]
    0xFF, 0x63, 0x10, // jmp [rbx + 16]
    0xCC, // stop: int3
];
const BREAKPOINT_OFFSET: u64 = 47;

/// The space that the routine needs in the last code page.
pub(crate) const ROUTINE_BYTES: u64 = ROUTINE.len() as u64;

/// A system call: its number and its arguments.
pub(crate) type Syscall<'a> = (i64, &'a [u64]);

/// The routine in a process and in the copies of the process.
#[derive(Debug)]
pub(crate) struct SyscallInjector {
    code: u64,
    /// The registers at the program's first instruction.
    registers: Registers,
}

impl SyscallInjector {
    /// Writes the routine to `code`, in a process that is stopped at its program's first instruction.
    pub(crate) fn install(tracee: &Tracee, code: u64, registers: Registers) -> io::Result<Self> {
        for (place, word) in (code..).step_by(WORD).zip(ROUTINE.as_chunks().0) {
            tracee.poke(place, u64::from_le_bytes(*word))?;
        }
        Ok(Self { code, registers })
    }

    /// Encodes a table that ends with a breakpoint.
    pub(crate) fn table(&self, calls: &[Syscall<'_>]) -> Vec<u8> {
        table(calls, [TABLE_END, 0, self.code + BREAKPOINT_OFFSET])
    }

    /// Encodes a table that ends with a jump to the program.
    pub(crate) fn last_table(&self, calls: &[Syscall<'_>]) -> Vec<u8> {
        table(calls, [TABLE_END, self.registers.rdx, self.registers.rip])
    }

    /// Executes the table at this address and returns the results of its calls. Fails if one of them fails.
    pub(crate) fn execute<const COUNT: usize>(
        &self,
        attention: &SigchldBlock,
        tracee: &Tracee,
        table: u64,
    ) -> io::Result<[i64; COUNT]> {
        self.set_next_table(tracee, table)?;
        tracee.resume()?;
        // Another process can send SIGTRAP too. The table would then hold the results of its previous use.
        let stopped = trace::is_trap(attention.next_stop(tracee.pid())?);
        if !stopped || tracee.registers()?.rip != self.code + BREAKPOINT_OFFSET + 1 {
            return Err(io::Error::other("a signal came between"));
        }
        let mut entries = vec![0; COUNT * ENTRY_WORDS * WORD];
        tracee.read(table, &mut entries)?;
        let mut results = [0; COUNT];
        for (result, entry) in results.iter_mut().zip(entries.chunks_exact(ENTRY_WORDS * WORD)) {
            let word = entry.last_chunk().copied().unwrap_or_default();
            *result = i64::from_le_bytes(word);
            if let Ok(error @ ..=-1) = i32::try_from(*result) {
                return Err(io::Error::from_raw_os_error(-error));
            }
        }
        Ok(results)
    }

    /// Makes the process continue with the table at this address when it is resumed.
    pub(crate) fn set_next_table(&self, tracee: &Tracee, table: u64) -> io::Result<()> {
        // The kernel must not restart a system call that was interrupted.
        let none = u64::MAX;
        tracee.set_registers(&Registers { rip: self.code, rbx: table, orig_rax: none, ..self.registers })
    }
}

/// The length of a table with this number of calls, in bytes.
pub(crate) const fn table_bytes(calls: u64) -> u64 {
    calls * ENTRY_BYTES + 3 * WORD as u64
}

fn table(calls: &[Syscall<'_>], end: [u64; 3]) -> Vec<u8> {
    let entry = |(number, arguments): &Syscall<'_>| {
        let mut entry = [0; ENTRY_WORDS];
        entry[0] = *number as u64;
        entry[1..=arguments.len()].copy_from_slice(arguments);
        entry
    };
    calls.iter().flat_map(entry).chain(end).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_bytes_is_the_length_of_a_table() {
        let calls: [Syscall<'_>; 2] = [(1, &[2, 3]), (4, &[])];
        let bytes = table(&calls, [TABLE_END, 5, 6]);
        assert_eq!(bytes.len() as u64, table_bytes(2));
        assert_eq!(bytes[..24], [1u64, 2, 3].map(u64::to_le_bytes).concat()[..]);
        assert_eq!(bytes[56..64], 4u64.to_le_bytes());
        assert_eq!(ROUTINE[BREAKPOINT_OFFSET as usize], 0xCC);
    }
}
