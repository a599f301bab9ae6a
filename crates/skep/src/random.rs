//! Cryptographically secure random bytes.

use rustix::rand::{GetRandomFlags, getrandom};

/// 32 bytes from the kernel.
pub(crate) fn bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let given = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if given == bytes.len() { Ok(bytes) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}
