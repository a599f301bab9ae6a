//! The memory of a guest in the address space of its VMM, and which pages of it the guest has changed.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt,
};

use super::{
    process_memory,
    runs::{self, PAGE_BYTES, Run},
};
use crate::disk_layer::FileId;

/// How many entries of the page map are read at once. Each has 8 bytes.
const PAGEMAP_BLOCK: usize = 64 << 10;
/// Bits of an entry (`Documentation/admin-guide/mm/pagemap.rst` of the kernel).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;

/// Where a VMM has the memory of its guest.
pub(super) struct GuestMemory {
    pid: u32,
    address: u64,
    pages: u64,
}

impl GuestMemory {
    /// Finds the maps of the memory file `ram`.
    ///
    /// # Errors
    /// The process has ended, or does not map the file as one range of this size.
    pub(super) fn locate(pid: u32, ram: &File, memory_mb: u64) -> io::Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let found = address_in(&maps, FileId::of(ram)?, memory_mb << 20);
        let address = found.ok_or_else(|| io::Error::other("the VMM does not map the guest's memory"))?;
        Ok(Self { pid, address, pages: (memory_mb << 20) / PAGE_BYTES })
    }

    #[cfg(test)]
    pub(super) fn of(pid: u32, address: u64, pages: u64) -> Self {
        Self { pid, address, pages }
    }

    /// The size of the memory, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    /// The pages that differ from the template: those that the guest has changed, and those of the delta that it continues.
    ///
    /// # Errors
    /// The process has ended, or that delta is not valid.
    pub(super) fn changed_runs(&self, continued: Option<&File>) -> io::Result<Vec<Run>> {
        let pagemap = File::open(format!("/proc/{}/pagemap", self.pid))?;
        let mut runs = continued.map_or(Ok(Vec::new()), |pages| runs::read(pages, self.pages))?;
        let mut block = vec![0_u8; PAGEMAP_BLOCK * 8];
        let mut page = 0;
        while page < self.pages {
            let entries =
                usize::try_from(self.pages - page).map_or(PAGEMAP_BLOCK, |left| left.min(PAGEMAP_BLOCK));
            let block = &mut block[..entries * 8];
            pagemap.read_exact_at(block, (self.address / PAGE_BYTES + page) * 8)?;
            add_changed(&mut runs, block, page);
            page += entries as u64;
        }
        Ok(runs::union(runs))
    }

    /// Reads memory from this offset on.
    ///
    /// # Errors
    /// The process has ended, or has unmapped it.
    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        process_memory::read_exact(self.pid, self.address + offset, buffer)
    }
}

/// Adds the runs of changed pages of a block of page map entries, the first of which is that of `first`.
fn add_changed(runs: &mut Vec<Run>, block: &[u8], first: u64) {
    let (entries, _) = block.as_chunks::<8>();
    let is_changed = |entry: &[u8; 8]| {
        let entry = u64::from_ne_bytes(*entry);
        entry & SWAPPED != 0 || entry & PRESENT != 0 && entry & OF_A_FILE == 0
    };
    let mut begin = None;
    for (page, entry) in (first..).zip(entries) {
        match (begin, is_changed(entry)) {
            (None, true) => begin = Some(page),
            (Some(since), false) => {
                runs.push(since..page);
                begin = None;
            }
            _ => {}
        }
    }
    runs.extend(begin.map(|since| since..first + entries.len() as u64));
}

/// The address of the first byte of a file that is mapped privately as one range of this size. Parts of the range may be
/// maps of something else, which lie over it.
fn address_in(maps: &str, file: FileId, bytes: u64) -> Option<u64> {
    let mut address = None;
    for map in maps.lines().filter_map(Map::parse) {
        if map.file != file || !map.is_private {
            continue;
        }
        let begin = map.range.start.checked_sub(map.offset)?;
        if *address.get_or_insert(begin) != begin || map.range.end > begin.checked_add(bytes)? {
            return None;
        }
    }
    address
}

/// A line of /proc/PID/maps (proc_pid_maps(5)).
struct Map {
    range: Range<u64>,
    is_private: bool,
    offset: u64,
    /// Files of other devices, such as the libraries of the VMM, may have the same inode number.
    file: FileId,
}

impl Map {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (begin, end) = fields.next()?.split_once('-')?;
        let range = hex(begin)?..hex(end)?;
        let is_private = fields.next()?.ends_with('p');
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let file = FileId::from_numbers(number(major)?, number(minor)?, fields.next()?.parse().ok()?);
        Some(Self { range, is_private, offset, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
7f0000100000-7f0000200000 rw-p 00100000 00:01 42                         /memfd:skep-ram (deleted)
7f0000200000-7f0000300000 rw-p 00200000 00:01 43                         /memfd:skep-delta (deleted)
7f0000300000-7f0000400000 rw-p 00300000 00:01 42                         /memfd:skep-ram (deleted)
7f0001000000-7f0001001000 r--s 00000000 00:01 42                         /memfd:skep-ram (deleted)
";

    /// A file of the device of [`MAPS`].
    fn memory_file(inode: u64) -> FileId {
        FileId::from_numbers(0, 1, inode)
    }

    #[test]
    fn the_memory_is_found_by_the_maps_of_its_file() {
        let ram = memory_file(42);
        assert_eq!(address_in(MAPS, ram, 4 << 20), Some(0x7f00_0000_0000));
        assert_eq!(address_in(MAPS, memory_file(44), 4 << 20), None);
        // Longer than the memory of the guest.
        assert_eq!(address_in(MAPS, ram, 3 << 20), None);
        // Mapped at two places.
        let twice =
            format!("{MAPS}7f0002000000-7f0002100000 rw-p 00000000 00:01 42 /memfd:skep-ram (deleted)\n");
        assert_eq!(address_in(&twice, ram, 4 << 20), None);
    }

    #[test]
    fn files_of_other_devices_with_the_inode_number_of_the_memory_are_not_the_memory() {
        let library = "7f0002000000-7f0002100000 r-xp 00000000 fe:01 42 /usr/lib/libfdt.so.1\n";
        let maps = format!("{library}{MAPS}{library}");
        assert_eq!(address_in(&maps, memory_file(42), 4 << 20), Some(0x7f00_0000_0000));
        assert_eq!(address_in(&maps, FileId::from_numbers(0xfe, 1, 42), 4 << 20), Some(0x7f00_0200_0000));
    }

    #[test]
    fn pages_of_files_and_pages_that_were_never_used_are_unchanged() {
        let entries = [0, PRESENT, PRESENT | OF_A_FILE, SWAPPED, SWAPPED | OF_A_FILE, 0, PRESENT];
        let block: Vec<u8> = entries.iter().flat_map(|entry: &u64| entry.to_ne_bytes()).collect();
        let mut runs = Vec::new();
        add_changed(&mut runs, &block, 10);
        assert_eq!(runs, [11..12, 13..15, 16..17]);
    }
}
