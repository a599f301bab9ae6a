//! What the kernel tells of a process that was just loaded.

use std::{fs, io};

use super::{scratch::MemoryMap, stack::Stack};

/// The kernel's own code in each process begins here, in whole pages, and makes system calls.
const GATE_PAGES: usize = 2;
const PAGE: usize = 4096;
const SYSCALL: [u8; 2] = [0x0F, 0x05];
const AT_ENTRY: u64 = 9;
const AT_SYSINFO_EHDR: u64 = 33;

/// What the kernel tells of a process that was just loaded.
#[derive(Debug)]
pub(super) struct Facts {
    /// The first instruction of its program.
    pub(super) entry: u64,
    pub(super) stack: Stack,
    pub(super) memory: MemoryMap,
    kernels_code: u64,
}

impl Facts {
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let notes = fs::read(format!("/proc/{pid}/auxv"))?;
        let memory = memory(&fs::read_to_string(format!("/proc/{pid}/stat"))?).ok_or_else(strange)?;
        let entry = note(&notes, AT_ENTRY).ok_or_else(strange)?;
        let kernels_code = note(&notes, AT_SYSINFO_EHDR).ok_or_else(strange)?;
        let stack = Stack::new(memory.stack, memory.texts[0], memory.texts[3], notes);
        Ok(Self { entry, stack, memory, kernels_code })
    }

    /// The address of an instruction that makes a system call.
    pub(super) fn gate(&self, read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> io::Result<u64> {
        let mut page = [0; PAGE];
        for number in 0..GATE_PAGES {
            let address = self.kernels_code + (number * PAGE) as u64;
            read(address, &mut page)?;
            if let Some(at) = page.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL) {
                return Ok(address + at as u64);
            }
        }
        Err(strange())
    }
}

fn note(notes: &[u8], wanted: u64) -> Option<u64> {
    let word = |at: usize| notes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    (0..notes.len()).step_by(16).find(|at| word(*at) == Some(wanted)).and_then(|at| word(at + 8))
}

/// Out of `/proc/PID/stat`, whose fields are numbered from 1 in proc(5). The second may hold blanks.
fn memory(stat: &str) -> Option<MemoryMap> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(MemoryMap {
        program: [field(26)?, field(27)?, field(45)?, field(46)?],
        heap: [field(47)?, field(47)?],
        stack: field(28)?,
        texts: [field(48)?, field(49)?, field(50)?, field(51)?],
    })
}

fn strange() -> io::Error {
    io::Error::other("the shell is no program as this machine knows them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let map = memory(&format!("1 (a b) c) t {}", numbers.join(" "))).unwrap();
        assert_eq!((map.program, map.heap, map.stack), ([26, 27, 45, 46], [47, 47], 28));
        assert_eq!(map.texts, [48, 49, 50, 51]);
        assert!(memory("1 (sh) t 1 2").is_none());
    }

    #[test]
    fn our_own_process_has_its_facts() {
        let facts = Facts::of(std::process::id()).unwrap();
        assert!(facts.entry > 0 && facts.memory.texts.is_sorted());
        assert!(facts.memory.stack > 0 && facts.memory.stack < facts.memory.texts[0]);
    }
}
