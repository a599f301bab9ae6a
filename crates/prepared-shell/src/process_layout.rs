//! The memory layout of a process that has just been loaded, read from `/proc`.

use std::{fs, io};

use crate::{scratch::MemoryMap, stack::Stack};

const PAGE: u64 = 4096;
/// Keys of the auxiliary vector: address and number of the program headers, and the entry point.
const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_ENTRY: u64 = 9;
/// A program header: its length, and the constants needed to read it.
const HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_PHDR: u32 = 6;
const PF_X: u32 = 1;

/// The memory layout of a process that has just been loaded.
#[derive(Debug)]
pub(crate) struct ProcessLayout {
    /// The address of the first instruction of its program.
    pub(crate) entry: u64,
    pub(crate) stack: Stack,
    pub(crate) memory: MemoryMap,
    headers: u64,
    header_count: u64,
}

impl ProcessLayout {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let auxv = fs::read(format!("/proc/{pid}/auxv"))?;
        let memory =
            memory(&fs::read_to_string(format!("/proc/{pid}/stat"))?).ok_or_else(unsupported_program)?;
        let entry = auxv_value(&auxv, AT_ENTRY).ok_or_else(unsupported_program)?;
        let headers = auxv_value(&auxv, AT_PHDR).ok_or_else(unsupported_program)?;
        let header_count = auxv_value(&auxv, AT_PHNUM).ok_or_else(unsupported_program)?;
        let stack = Stack::new(memory.stack, memory.texts[0], memory.texts[3], auxv);
        Ok(Self { entry, stack, memory, headers, header_count })
    }

    /// The address of at least `bytes` unused bytes between the end of the code and the end of its last page.
    pub(crate) fn find_code_gap(
        &self,
        bytes: u64,
        read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut headers =
            vec![0; usize::try_from(self.header_count).map_err(|_| unsupported_program())? * HEADER_BYTES];
        read(self.headers, &mut headers)?;
        let headers = || headers.chunks_exact(HEADER_BYTES).filter_map(Header::parse);
        let own = headers().find(|header| header.kind == PT_PHDR).ok_or_else(unsupported_program)?;
        let shift = self.headers.wrapping_sub(own.address);
        let holds_entry = |header: &Header| {
            let begin = header.address.wrapping_add(shift);
            (begin..begin.saturating_add(header.length)).contains(&self.entry)
        };
        let code = headers().find(|it| it.kind == PT_LOAD && it.flags & PF_X != 0 && holds_entry(it));
        let code = code.ok_or_else(unsupported_program)?;
        let end = (code.address.wrapping_add(shift) + code.length).next_multiple_of(8);
        let page_end = end.next_multiple_of(PAGE);
        if page_end - end >= bytes { Ok(end) } else { Err(unsupported_program()) }
    }
}

struct Header {
    kind: u32,
    flags: u32,
    address: u64,
    /// The length in the file. For code this is also the length in memory.
    length: u64,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        Some(Self { kind: half(0)?, flags: half(4)?, address: word(16)?, length: word(32)? })
    }
}

fn auxv_value(notes: &[u8], wanted: u64) -> Option<u64> {
    let word = |at: usize| notes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    (0..notes.len()).step_by(16).find(|at| word(*at) == Some(wanted)).and_then(|at| word(at + 8))
}

/// Parses `/proc/PID/stat`, whose fields are numbered from 1 in proc(5). The second field may contain blanks.
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

fn unsupported_program() -> io::Error {
    io::Error::other("the layout of the shell's program is not supported")
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
    fn the_layout_of_this_process_is_read() {
        let facts = ProcessLayout::of(std::process::id()).unwrap();
        assert!(facts.entry > 0 && facts.memory.texts.is_sorted());
        assert!(facts.memory.stack > 0 && facts.memory.stack < facts.memory.texts[0]);
    }
}
