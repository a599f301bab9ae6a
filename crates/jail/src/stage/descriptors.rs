//! The descriptors of the program.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

const FIRST_INHERITED: RawFd = 3;
/// Above all inherited descriptors. The socket must stay open until `execve`, to report its failure.
const ABOVE_INHERITED: RawFd = FIRST_INHERITED + skep_packet::MAX_DESCRIPTORS as RawFd;

/// Moves the socket from standard input to another number, and opens /dev/null as standard input.
///
/// # Errors
/// Standard input is closed or not a socket.
pub(super) fn take_stdin() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), ABOVE_INHERITED)?;
    rustix::net::sockopt::socket_type(&socket)?;
    let null = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket)
}

/// Renumbers the descriptors from 3 upward, to be inherited. All others close at `execve`.
///
/// # Errors
/// The limit of open descriptors is reached.
pub(super) fn arrange(inherited: Vec<OwnedFd>) -> io::Result<()> {
    let count = RawFd::try_from(inherited.len()).map_err(io::Error::other)?;
    let above = FIRST_INHERITED + count;
    // Moved above the target numbers first, so that none is overwritten before it is placed.
    let parked: Vec<OwnedFd> = inherited
        .iter()
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, above))
        .collect::<Result<_, _>>()?;
    // Not dropped, which would close numbers that are reused below.
    std::mem::forget(inherited);
    close_at_exec_from(FIRST_INHERITED)?;
    for (target, descriptor) in (FIRST_INHERITED..).zip(&parked) {
        place(descriptor.as_fd(), target)?;
    }
    Ok(())
}

fn place(descriptor: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: no `OwnedFd` owns a number up to the last target: the inherited ones were forgotten, and the socket has a
    // higher number.
    match unsafe { libc::dup2(descriptor.as_raw_fd(), target) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn close_at_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: only sets CLOEXEC; no descriptor is closed before `execve`.
    match unsafe {
        libc::close_range(first.cast_unsigned(), u32::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed())
    } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes a write beyond the file size limit fail with `EFBIG`, which a VMM can report to its guest, instead of killing
/// it.
pub(super) fn ignore_file_size_signal() -> io::Result<()> {
    // SAFETY: no handler is installed.
    match unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
