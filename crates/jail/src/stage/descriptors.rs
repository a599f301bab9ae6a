//! Which descriptors the program is born with.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

/// The first descriptor after standard input, output and error.
const FIRST: RawFd = 3;
/// Above all that can be inherited: the socket must live until `execve`, to tell that it failed.
const ABOVE_INHERITED: RawFd = FIRST + skep_packet::MAX_DESCRIPTORS as RawFd;

/// The socket that standard input is, under another number; standard input becomes /dev/null.
///
/// # Errors
/// Standard input is closed, or no socket.
pub(super) fn take_stdin() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), ABOVE_INHERITED)?;
    rustix::net::sockopt::socket_type(&socket)?;
    let null = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket)
}

/// Gives the descriptors the numbers from 3 upward, to be inherited; all others close at `execve`.
///
/// # Errors
/// No descriptor is left.
pub(super) fn arrange(inherited: Vec<OwnedFd>) -> io::Result<()> {
    let count = RawFd::try_from(inherited.len()).map_err(io::Error::other)?;
    let above = FIRST + count;
    // First out of the way, so that none overwrites one that is still to be placed.
    let parked: Vec<OwnedFd> = inherited
        .iter()
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, above))
        .collect::<Result<_, _>>()?;
    // Still open: dropped later, they would close the numbers that were just given.
    std::mem::forget(inherited);
    close_at_exec_from(FIRST)?;
    for (target, descriptor) in (FIRST..).zip(&parked) {
        place(descriptor.as_fd(), target)?;
    }
    Ok(())
}

fn place(descriptor: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: no owner of a number up to the last target will use or close it: what was inherited there was forgotten,
    // and the socket lies above.
    match unsafe { libc::dup2(descriptor.as_raw_fd(), target) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn close_at_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: only marks descriptors; none is closed before `execve`.
    match unsafe {
        libc::close_range(first.cast_unsigned(), u32::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed())
    } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A write over the file size limit gives `EFBIG`, which a VMM can report to its guest, instead of ending it.
///
/// # Errors
/// Never, on Linux.
pub(super) fn ignore_file_size_signal() -> io::Result<()> {
    // SAFETY: ignoring a signal runs no code.
    match unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
