//! Reads memory of another process.

use std::io;

/// Fills the buffer from this address of a process. Needs `CAP_SYS_PTRACE`.
///
/// # Errors
/// The process has ended, has nothing mapped there, or may not be read.
pub(super) fn read_exact(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let address = usize::try_from(address).map_err(io::Error::other)?;
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let remote = libc::iovec { iov_base: (address + filled) as *mut libc::c_void, iov_len: rest.len() };
        // SAFETY: the local vector is the rest of the buffer, which is borrowed for the call. The remote addresses are those
        // of the other process, and the kernel checks them.
        let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(read) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_an_address_without_memory_is_an_error() {
        let source: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        let mut copy = vec![0; source.len()];
        let address = source.as_ptr() as u64;
        read_exact(std::process::id(), address, &mut copy).unwrap();
        assert_eq!(copy, source);
        assert!(read_exact(std::process::id(), 8, &mut copy).is_err());
        assert!(read_exact(0x7fff_ffff, address, &mut copy).is_err());
    }
}
