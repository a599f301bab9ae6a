//! Random bytes for secrets.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Refusal;

/// 32 random bytes of the kernel.
///
/// # Errors
/// `internal` where the kernel returns fewer.
pub(crate) fn bytes() -> Result<[u8; 32], Refusal> {
    let mut bytes = [0; 32];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(32) => Ok(bytes),
        Ok(short) => Err(Refusal::internal(format!("the kernel gave only {short} of 32 random bytes"))),
        Err(error) => Err(Refusal::internal(format!("the kernel gave no random bytes: {error}"))),
    }
}
