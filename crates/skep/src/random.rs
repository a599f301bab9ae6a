//! Bytes that nobody can foresee.

use rustix::rand::{GetRandomFlags, getrandom};

/// 32 bytes of the kernel's.
pub(crate) fn bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let given = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if given == bytes.len() { Ok(bytes) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}
