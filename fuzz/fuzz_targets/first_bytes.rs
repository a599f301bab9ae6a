//! Whatever a guest sends first, its hosts are read or it is refused, and further bytes change no decision.
//!
//! The process decides by the bytes that have arrived and does not check those that follow, so a guest could send the rest of
//! a request after the decision.

#![no_main]

#[expect(dead_code, reason = "the process has limits that the target does not use")]
#[path = "../../crates/vm-egress/src/first_bytes.rs"]
mod first_bytes;

use first_bytes::FirstBytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [cut, bytes @ ..] = input else { return };
    let (early, _) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    match first_bytes::read(early) {
        early @ (FirstBytes::Hosts(_) | FirstBytes::NoHost) => assert_eq!(first_bytes::read(bytes), early),
        FirstBytes::Malformed | FirstBytes::Incomplete => {}
    }
});
