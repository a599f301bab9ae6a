//! Whatever a guest sends first, its hosts are read or it is refused, and no prefix of it names other hosts.
//!
//! The process decides by the bytes that have arrived, so a host that only a prefix names would be a way around the
//! policy.

#![no_main]

#[expect(dead_code, reason = "the process has limits that the target does not use")]
#[path = "../../crates/vm-egress/src/first_bytes.rs"]
mod first_bytes;

use first_bytes::FirstBytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [cut, bytes @ ..] = input else { return };
    let whole = first_bytes::read(bytes);
    let (early, _) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    match first_bytes::read(early) {
        FirstBytes::Hosts(hosts) => assert_eq!(whole, FirstBytes::Hosts(hosts)),
        FirstBytes::NoHost => assert!(!matches!(whole, FirstBytes::Hosts(_)), "{whole:?}"),
        FirstBytes::Malformed | FirstBytes::Incomplete | FirstBytes::Silence => {}
    }
});
