//! Whatever a guest sends, the host's end neither panics nor hangs.
//!
//! The first byte says what becomes of the marker, the second where the rest is cut in two: in front of the marker and
//! behind it.

#![no_main]

#[expect(dead_code, reason = "the tests that share it also record sessions in good order")]
#[path = "../../crates/channel/tests/malformed/session.rs"]
mod session;

use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use session::{Echo, Script, play};
use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Mutex<Runtime>> =
    LazyLock::new(|| Mutex::new(Builder::new_current_thread().enable_all().build().expect("a runtime")));

fuzz_target!(|input: &[u8]| {
    let [how, cut, bytes @ ..] = input else { return };
    let echo = match how % 8 {
        0 => Echo::Twice,
        1 => Echo::AfterHalf,
        2 => Echo::Other,
        3 => Echo::Late,
        _ => Echo::Right,
    };
    let (early, late) =
        if how & 0x20 == 0 { (&[][..], bytes) } else { bytes.split_at(usize::from(*cut).min(bytes.len())) };
    let script = Script {
        early: early.to_vec(),
        echo,
        late: late.to_vec(),
        waits: how & 0x40 != 0,
        streamed: how & 0x10 != 0,
    };
    let runtime = RUNTIME.lock().expect("a runtime");
    let _ = runtime.block_on(play(&script));
});
