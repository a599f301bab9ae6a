//! Preloaded into a VMM that restores a guest. When the VMM maps the memory file of the template privately, this library
//! maps anonymous memory over the file's holes.
//!
//! Without it, the guest's first access to a page of a hole allocates that page in the memory file, also if it only
//! reads, and a write then copies it: each page would be paid twice, and the file's half would stay after the VM's end.
//!
//! A guest that continues a snapshot has a second memory file, the delta, with what the snapshot changed. The library maps
//! its runs of pages over the template's, so that the guests of a snapshot share both files.
//!
//! `LD_PRELOAD` names this library, [`RAM_FD`] the inherited descriptor of the memory file, [`DELTA_FD`] that of the delta
//! and [`PAGES_FD`] that of the list of its runs. Nothing but `mmap` and `mmap64` is replaced, and all other maps are passed
//! on unchanged.
//!
//! The standard library is linked where a panic unwinds, which is every profile but that of the product: there a library
//! without it cannot be linked.

#![cfg_attr(panic = "abort", no_std)]

use core::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_void},
    mem::{MaybeUninit, size_of_val},
};

use libc::{off_t, size_t};

/// The variable with the number of the memory file's descriptor.
const RAM_FD: &CStr = c"SKEP_RAM_FD";
/// The variable with the number of the delta's descriptor. Not set for a guest of a baked template.
const DELTA_FD: &CStr = c"SKEP_DELTA_FD";
/// The variable with the number of the descriptor of the delta's runs: pairs of offsets in bytes, begin and end, as numbers
/// of 64 bits in the byte order of the machine, ascending and without overlap.
const PAGES_FD: &CStr = c"SKEP_PAGES_FD";
/// Smaller holes stay: each costs a map of its own, and a process has a limited number.
const MIN_HOLE_BYTES: off_t = 64 << 10;
/// The most holes that are replaced; the others stay. Each replaced hole and each run of the delta takes at most two more maps.
/// With the 16,384 runs that the keeper allows, that is 56,768 of the 65,530 that Linux allows a process.
const MAX_HOLES: u32 = 12_000;

/// Replaces `mmap` of the C library.
///
/// # Safety
/// As that of the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments, unchanged.
    let mapped = unsafe { system_mmap(address, bytes, protection, flags, fd, offset) };
    let is_private_file = flags & libc::MAP_PRIVATE != 0 && flags & libc::MAP_ANONYMOUS == 0 && fd >= 0;
    if mapped != libc::MAP_FAILED && is_private_file && is_ram(fd) {
        let holes_left = Cell::new(MAX_HOLES);
        let range = Range { mapped, bytes, protection, flags, offset, holes_left };
        if range.replace_holes(fd, offset, range.end()).is_none() {
            end(b"skep-preload: the holes of the guest's memory file cannot be mapped\n");
        }
        if range.map_delta().is_none() {
            end(b"skep-preload: what a snapshot changed in the guest's memory cannot be mapped\n");
        }
    }
    mapped
}

/// Replaces `mmap64`, which is `mmap` on 64-bit machines.
///
/// # Safety
/// As that of the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { mmap(address, bytes, protection, flags, fd, offset) }
}

/// The system call, which sets `errno` as the C library does.
unsafe fn system_mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller answers for the arguments.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, fd, offset) };
    mapped as *mut c_void
}

/// A private map of the memory file.
struct Range {
    mapped: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    /// Where the map begins in the file.
    offset: off_t,
    /// How many more holes may be replaced.
    holes_left: Cell<u32>,
}

impl Range {
    /// The end of the map, in the file.
    fn end(&self) -> off_t {
        self.offset.saturating_add(off_t::try_from(self.bytes).unwrap_or(off_t::MAX))
    }

    /// Maps anonymous memory over the holes of a file, which has the offsets of the memory file, between two offsets, as long
    /// as any may be replaced. `None` if that failed. Moves the position of the file, which is only mapped.
    fn replace_holes(&self, fd: c_int, begin: off_t, end: off_t) -> Option<()> {
        let mut hole = seek(fd, begin, libc::SEEK_HOLE)?;
        while hole < end {
            // No data follows the last hole.
            let data = seek(fd, hole, libc::SEEK_DATA).map_or(end, |data| data.min(end));
            if data - hole >= MIN_HOLE_BYTES {
                let Some(left) = self.holes_left.get().checked_sub(1) else { return Some(()) };
                self.holes_left.set(left);
                self.map(-1, hole, data)?;
            }
            if data == end {
                break;
            }
            hole = seek(fd, data, libc::SEEK_HOLE)?;
        }
        Some(())
    }

    /// Maps the runs of the delta. `None` if one cannot be mapped, or the list is not one.
    fn map_delta(&self) -> Option<()> {
        let Some(delta) = inherited(DELTA_FD) else { return Some(()) };
        let pages = inherited(PAGES_FD)?;
        let mut at = 0;
        while let Some((begin, end)) = read_run(pages, at)? {
            if begin >= end || begin < self.offset || end > self.end() {
                return None;
            }
            self.map(delta, begin, end)?;
            self.replace_holes(delta, begin, end)?;
            at += RUN_BYTES;
        }
        Some(())
    }

    /// The addresses of a part of the memory file become a private map of the same part of another file, or anonymous
    /// memory without one.
    fn map(&self, fd: c_int, begin: off_t, end: off_t) -> Option<()> {
        let at = self.mapped.wrapping_byte_offset(isize::try_from(begin - self.offset).ok()?);
        let (anonymous, offset) = if fd < 0 { (libc::MAP_ANONYMOUS, 0) } else { (0, begin) };
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | anonymous | self.flags & libc::MAP_NORESERVE;
        let bytes = usize::try_from(end - begin).ok()?;
        // SAFETY: the addresses lie in the map that was just made, which nothing has used yet.
        let mapped = unsafe { system_mmap(at, bytes, self.protection, flags, fd, offset) };
        (mapped == at).then_some(())
    }
}

fn seek(fd: c_int, from: off_t, whence: c_int) -> Option<off_t> {
    // SAFETY: takes no pointer.
    let found = unsafe { libc::lseek(fd, from, whence) };
    (found >= 0).then_some(found)
}

/// The size of a run in the list.
const RUN_BYTES: off_t = 16;

/// Reads a run of the list; the inner `None` at its end. `None` if it cannot be read or is incomplete.
fn read_run(pages: c_int, at: off_t) -> Option<Option<(off_t, off_t)>> {
    let mut run = [0_i64; 2];
    // SAFETY: the pointer is to a local array of this size.
    let read = unsafe { libc::pread(pages, run.as_mut_ptr().cast(), size_of_val(&run), at) };
    match off_t::try_from(read) {
        Ok(0) => Some(None),
        Ok(RUN_BYTES) => Some(Some((run[0], run[1]))),
        _ => None,
    }
}

/// Whether the descriptor refers to the memory file. The VMM opens it anew by its path, so the numbers differ.
fn is_ram(fd: c_int) -> bool {
    let Some(ram) = inherited(RAM_FD) else { return false };
    matches!((identity(ram), identity(fd)), (Some(ram), Some(this)) if ram == this)
}

/// Device and inode.
fn identity(fd: c_int) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is to a local `stat` that outlives the call.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

/// The descriptor that a variable names.
fn inherited(variable: &CStr) -> Option<c_int> {
    // SAFETY: the name is a C string. A VMM does not change its environment.
    let text: *const c_char = unsafe { libc::getenv(variable.as_ptr()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: `getenv` returned a C string of the environment.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok()?.parse().ok()
}

/// Ends the VMM: it must not run with memory that is paid twice, for which its limit is too low, or with that of another
/// guest.
fn end(message: &[u8]) -> ! {
    // SAFETY: the pointer and length are those of the message. Nothing can be done if the write fails.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        libc::_exit(1)
    }
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    end(b"skep-preload: panic\n")
}
