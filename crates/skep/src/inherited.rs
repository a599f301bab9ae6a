//! Descriptors that the processes of a server inherit when it starts them.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use anyhow::bail;
use rustix::{
    fs::{FileType, fstat},
    io::{FdFlags, fcntl_setfd},
};

/// Takes over an inherited descriptor. Programs that this process starts do not inherit it. Must be called once for a number, before
/// this process closes any descriptor.
///
/// # Errors
/// There is no descriptor of this kind: the process was not started by `skep serve`.
pub(crate) fn take(number: RawFd, kind: FileType) -> anyhow::Result<OwnedFd> {
    // SAFETY: this process has closed no descriptor yet, so one with this number was inherited, or is not open, which
    // the call below reports.
    let found = unsafe { BorrowedFd::borrow_raw(number) };
    if !fstat(found).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind) {
        bail!("this verb is for `skep serve`, which starts it with its sockets");
    }
    // SAFETY: the check above has shown that it is open, and no other object in this process owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&owned, FdFlags::CLOEXEC)?;
    Ok(owned)
}
