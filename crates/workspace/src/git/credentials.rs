//! Handing a token to git: in a file without a name that only its processes have, so that it stands on no command line, in
//! no environment and in no settings.

use std::{
    io,
    io::Write,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::{FdFlags, fcntl_setfd},
};
use skep_api::git::Credential;

use super::settings::Settings;

/// A token in memory, and the settings by which git asks for it, for this host alone.
pub(super) fn hand_over(
    settings: Settings,
    host: &str,
    credential: &Credential,
) -> io::Result<(Settings, OwnedFd)> {
    let file = memfd_create("git-credential", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    // The lines of git-credential(1).
    writeln!(file, "username={}\npassword={}", credential.username, credential.token)?;
    let descriptor = OwnedFd::from(file);
    let number = descriptor.as_raw_fd();
    let helper = format!("!f() {{ test \"$1\" = get && cat /proc/self/fd/{number}; }}; f");
    Ok((settings.with(format!("credential.https://{host}.helper"), helper), descriptor))
}

/// Lets a program that is about to be executed have this descriptor. Between fork and exec.
pub(super) fn pass(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: whoever starts the program holds the descriptor open meanwhile, and the child has a copy of all.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
}
