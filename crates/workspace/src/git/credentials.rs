//! Passes secrets to git in unnamed memory files that only its processes inherit, so that they appear in no command
//! line, environment or config.

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

use super::{callback::Callback, config::ConfigOverrides};

/// Stores a token in memory, and returns the callback by which git asks for it, for this host alone, and the overrides
/// that let git ask.
pub(super) fn password_callback(
    settings: ConfigOverrides,
    host: &str,
    credential: &Credential,
) -> io::Result<(ConfigOverrides, Callback)> {
    // The format of git-credential(1).
    let text = format!("username={}\npassword={}\n", credential.username, credential.token);
    let callback = Callback::password(host, memory_file("git-credential", text.as_bytes())?)?;
    // Git 2.47 and later does not prompt otherwise. A path in the prompt would not match the host.
    let settings = settings.with("credential.interactive", "true").with("credential.usehttppath", "false");
    Ok((settings, callback))
}

/// Stores a private key in memory.
pub(super) fn ssh_key_file(credential: &Credential) -> io::Result<OwnedFd> {
    memory_file("ssh-key", credential.token.as_bytes())
}

/// A memory file that only its owner can read, as ssh requires, and that cannot be executed.
fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    file.write_all(content)?;
    Ok(file.into())
}

/// Clears close-on-exec. Called between fork and exec.
pub(super) fn clear_close_on_exec(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the caller keeps the descriptor open meanwhile, and the child has a copy of it.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
}
