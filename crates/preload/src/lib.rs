//! Preloaded into a VMM that restores a guest. When the VMM maps the memory file of the template privately, this library
//! maps anonymous memory over the file's holes.
//!
//! Without it, the guest's first access to a page of a hole allocates that page in the memory file, also if it only
//! reads, and a write then copies it: each page would be paid twice, and the file's half would stay after the VM's end.
//!
//! `LD_PRELOAD` names this library and [`RAM_FD`] the inherited descriptor of the memory file. Nothing but `mmap` and
//! `mmap64` is replaced, and all other maps are passed on unchanged.
//!
//! The standard library is linked where a panic unwinds, which is every profile but that of the product: there a library
//! without it cannot be linked.

#![cfg_attr(panic = "abort", no_std)]

use core::{
    ffi::{CStr, c_char, c_int, c_void},
    mem::MaybeUninit,
};

use libc::{off_t, size_t};

/// The variable with the number of the memory file's descriptor.
const RAM_FD: &CStr = c"SKEP_RAM_FD";
/// Smaller holes stay: each costs a map of its own, and a process has a limited number.
const MIN_HOLE_BYTES: off_t = 64 << 10;

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
        let range = Range { mapped, bytes, protection, flags, fd, offset };
        if range.replace_holes().is_none() {
            end(b"skep-preload: the holes of the guest's memory file cannot be mapped\n");
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
    fd: c_int,
    /// Of the map's begin, in the file.
    offset: off_t,
}

impl Range {
    /// Maps anonymous memory over the holes. `None` if that failed. Moves the position of the file, which the VMM
    /// opened for itself and only maps.
    fn replace_holes(&self) -> Option<()> {
        let end = self.offset.checked_add(off_t::try_from(self.bytes).ok()?)?;
        let mut hole = self.seek(self.offset, libc::SEEK_HOLE)?;
        while hole < end {
            // No data follows the last hole.
            let data = self.seek(hole, libc::SEEK_DATA).map_or(end, |data| data.min(end));
            if data - hole >= MIN_HOLE_BYTES {
                self.map_anonymous(hole, data)?;
            }
            if data == end {
                break;
            }
            hole = self.seek(data, libc::SEEK_HOLE)?;
        }
        Some(())
    }

    fn seek(&self, from: off_t, whence: c_int) -> Option<off_t> {
        // SAFETY: takes no pointer.
        let found = unsafe { libc::lseek(self.fd, from, whence) };
        (found >= 0).then_some(found)
    }

    /// The addresses of a part of the file become anonymous memory.
    fn map_anonymous(&self, from: off_t, to: off_t) -> Option<()> {
        let at = self.mapped.wrapping_byte_offset(isize::try_from(from - self.offset).ok()?);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let flags = flags | self.flags & libc::MAP_NORESERVE;
        let bytes = usize::try_from(to - from).ok()?;
        // SAFETY: the addresses lie in the map that was just made, which nothing has used yet.
        let mapped = unsafe { system_mmap(at, bytes, self.protection, flags, -1, 0) };
        (mapped == at).then_some(())
    }
}

/// Whether the descriptor refers to the memory file. The VMM opens it anew by its path, so the numbers differ.
fn is_ram(fd: c_int) -> bool {
    let Some(ram) = inherited_ram() else { return false };
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

/// The descriptor that [`RAM_FD`] names.
fn inherited_ram() -> Option<c_int> {
    // SAFETY: the name is a C string. A VMM does not change its environment.
    let text: *const c_char = unsafe { libc::getenv(RAM_FD.as_ptr()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: `getenv` returned a C string of the environment.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok()?.parse().ok()
}

/// Ends the VMM: it must not run with memory that is paid twice, for which its limit is too low.
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
