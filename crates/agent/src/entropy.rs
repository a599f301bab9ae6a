//! Reseeds the kernel's random generator, whose state all VMs of a snapshot share.

use std::{fs::OpenOptions, io, os::fd::AsRawFd};

use crate::error::{Error, StepContext};

const SEED_BYTES: usize = 64;
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// `struct rand_pool_info` with a buffer for the seed.
#[repr(C)]
struct Pool {
    entropy_bits: libc::c_int,
    bytes: libc::c_int,
    seed: [u8; SEED_BYTES],
}

/// Adds the seed as entropy, and rekeys the generator at once.
pub(crate) fn reseed(seed: &str) -> Result<(), Error> {
    let seed = decode(seed)
        .ok_or(Error::Malformed { part: "seed", wanted: "it must be 64 bytes as hexadecimal digits" })?;
    let pool = Pool { entropy_bits: SEED_BYTES as libc::c_int * 8, bytes: SEED_BYTES as libc::c_int, seed };
    let random = OpenOptions::new().write(true).open("/dev/urandom").context("open /dev/urandom")?;
    // SAFETY: the request reads one `rand_pool_info`, whose size it holds, and the descriptor is open.
    let added = unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, &raw const pool) };
    succeeded(added).context("add entropy")?;
    // SAFETY: the request takes no argument, and the descriptor is open.
    let reseeded = unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG) };
    succeeded(reseeded).context("reseed the random generator")
}

fn succeeded(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn decode(hex: &str) -> Option<[u8; SEED_BYTES]> {
    let mut seed = [0; SEED_BYTES];
    let digits = hex.as_bytes();
    if digits.len() != 2 * SEED_BYTES {
        return None;
    }
    for (byte, pair) in seed.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(value(pair[0])? * 16 + value(pair[1])?).ok()?;
    }
    Some(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_64_bytes_of_hexadecimal() {
        let seed = decode(&"0aF1".repeat(32)).expect("a seed");
        assert_eq!(&seed[..4], [0x0A, 0xF1, 0x0A, 0xF1]);
        assert_eq!(decode(&"0g".repeat(64)), None);
        assert_eq!(decode("00"), None);
    }
}
