//! Passes secrets to git in sockets that only its processes inherit, so that they appear in no command line, environment
//! or config.
//!
//! Git must not be able to open a secret by path, as it could if the descriptor were a file: a link of the repository to
//! `/proc/self/fd/N` would make git read it, and git repeats lines that it does not understand in its error messages.
//! Sockets cannot be opened by path (`sock_no_open` in the kernel's net/socket.c).

use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd, RawFd},
        unix::net::UnixDatagram,
    },
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{RecvFlags, recv},
};
use skep_api::git::Credential;

use super::{callback::Callback, config::ConfigOverrides};

/// Limit of a secret, in bytes. A private key of 16384 bits has 13 KB.
const MAX_SECRET_BYTES: usize = 64 << 10;

/// Stores a token in a socket, and returns the callback by which git asks for it, for this host alone, and the overrides
/// that let git ask.
pub(super) fn password_callback(
    settings: ConfigOverrides,
    host: &str,
    credential: &Credential,
) -> io::Result<(ConfigOverrides, Callback)> {
    // The format of git-credential(1).
    let text = format!("username={}\npassword={}\n", credential.username, credential.token);
    let callback = Callback::password(host, socket_with(text.as_bytes())?)?;
    // Git 2.47 and later does not prompt otherwise. A path in the prompt would not match the host.
    let settings = settings.with("credential.interactive", "true").with("credential.usehttppath", "false");
    Ok((settings, callback))
}

/// Stores a private key in a socket.
pub(super) fn ssh_key_socket(credential: &Credential) -> io::Result<OwnedFd> {
    socket_with(credential.token.as_bytes())
}

/// A socket that holds a secret as one message.
fn socket_with(secret: &[u8]) -> io::Result<OwnedFd> {
    let (sender, receiver) = UnixDatagram::pair()?;
    sender.set_nonblocking(true)?;
    sender.send(secret)?;
    Ok(receiver.into())
}

/// Reads the secret of an inherited socket, and leaves it there: git prompts more than once.
pub(super) fn read_inherited(descriptor: RawFd) -> io::Result<Vec<u8>> {
    // SAFETY: git leaves the descriptor open in the programs that it starts, and nothing in this process closes it.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let mut secret = vec![0; MAX_SECRET_BYTES];
    let (length, _) = recv(socket, &mut secret[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    secret.truncate(length);
    Ok(secret)
}

/// Clears close-on-exec. Called between fork and exec.
pub(super) fn clear_close_on_exec(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the caller keeps the descriptor open meanwhile, and the child has a copy of it.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
}
