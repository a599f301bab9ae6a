//! Handing a token to git: in a file without a name that only its processes have, so that it stands on no command line, in
//! no environment and in no settings.

use std::{
    io,
    io::Write,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    fs::{MemfdFlags, Mode, fchmod, memfd_create},
    io::{FdFlags, fcntl_setfd},
};
use skep_api::git::Credential;

use super::{callback::Callback, settings::Settings};

/// A token in memory, the way by which git asks for it, for this host alone, and the settings that let it ask.
pub(super) fn hand_over(
    settings: Settings,
    host: &str,
    credential: &Credential,
) -> io::Result<(Settings, Callback)> {
    // The lines of git-credential(1).
    let text = format!("username={}\npassword={}\n", credential.username, credential.token);
    let callback = Callback::password(host, secret("git-credential", text.as_bytes())?)?;
    // Git from 2.47 on asks nobody otherwise; with a path in its question, no host would be alike.
    let settings = settings.with("credential.interactive", "true").with("credential.usehttppath", "false");
    Ok((settings, callback))
}

/// A private key in memory.
pub(super) fn hand_over_key(credential: &Credential) -> io::Result<OwnedFd> {
    secret("ssh-key", credential.token.as_bytes())
}

/// A file in memory that its owner alone reads, as ssh demands, and that nobody executes.
fn secret(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    file.write_all(content)?;
    Ok(file.into())
}

/// Lets a program that is about to be executed have this descriptor. Between fork and exec.
pub(super) fn pass(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the caller holds the descriptor open meanwhile, and the child has a copy of all.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
}
