//! Creates memory files by memfd_create(2), and seals them: their content, length and seals cannot be changed any more.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create},
    io::Errno,
};

/// Attempts to seal a file. Each waits for pages in use by itself, up to 150 ms; with the pauses that is 10 s in all.
const MAX_ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(100);

/// Creates an empty memory file that can be sealed. The mode binds those who open it by `/proc/self/fd`.
///
/// # Errors
/// No memory or no descriptor is available.
pub fn create(name: &str, mode: Mode) -> io::Result<File> {
    let file: OwnedFd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&file, mode)?;
    Ok(file.into())
}

/// Seals a memory file: no holder of a descriptor can change its bytes, its length or its seals.
///
/// Linux refuses the seal with `EBUSY` while anyone holds a reference to a page of the file, and counts its own: it takes
/// some for moments when it moves pages to make room for large ones. So a refusal is tried again, and blocks for up to 10 s.
///
/// # Errors
/// A process maps the file shared and writable all the time, or the file does not allow seals.
pub fn seal(file: impl AsFd) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for _ in 1..MAX_ATTEMPTS {
        match fcntl_add_seals(&file, seals) {
            Err(Errno::BUSY) => thread::sleep(PAUSE),
            outcome => return Ok(outcome?),
        }
    }
    Ok(fcntl_add_seals(&file, seals)?)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::FileExt, ptr};

    use rustix::{
        fs::fcntl_get_seals,
        mm::{MapFlags, ProtFlags, mmap, munmap},
    };

    use super::*;

    #[test]
    fn a_sealed_file_cannot_be_changed() {
        let mut file = create("sealed", Mode::from_raw_mode(0o444)).unwrap();
        file.write_all(b"content").unwrap();
        seal(&file).unwrap();
        assert_eq!(file.write_at(b"other", 0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(file.set_len(0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::SEAL));
    }

    #[test]
    fn a_file_that_is_in_use_for_a_moment_is_sealed_after_it() {
        const BYTES: usize = 4096;
        let file = create("in use", Mode::from_raw_mode(0o444)).unwrap();
        file.set_len(BYTES as u64).unwrap();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let mapping = unsafe { mmap(ptr::null_mut(), BYTES, protection, flags, &file, 0) }.unwrap();
        // The control: one attempt fails.
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::BUSY));
        thread::scope(|scope| {
            let sealing = scope.spawn(|| seal(&file));
            thread::sleep(2 * PAUSE);
            // SAFETY: this is the whole mapping of above, and nothing refers to its memory.
            unsafe { munmap(mapping, BYTES) }.unwrap();
            sealing.join().unwrap().unwrap();
        });
        assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::WRITE));
    }
}
