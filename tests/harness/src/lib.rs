//! What the suites of tests share. Tests of crates use it without features: waiting, processes, control groups.
//!
//! [`binary`] starts the release binary, and its drop checks that the server left nothing behind. [`service`] runs the
//! HTTP API in the process of the test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its harness too")]

#[cfg(feature = "binary")]
pub mod binary;
mod control_groups;
#[cfg(any(feature = "binary", feature = "service"))]
pub mod endless_remote;
mod guide;
mod names;
pub mod process;
#[cfg(any(feature = "binary", feature = "service"))]
pub mod receiver;
#[cfg(feature = "service")]
pub mod service;
mod wait;

pub use control_groups::{ControlGroup, control_groups};
pub use guide::{GUIDE, blocks_of_guide};
pub use names::unique_name;
pub use wait::{eventually, eventually_empty, eventually_within, wait_until};

/// A directory whose name shows what it is for, if a test leaves it behind.
pub fn temp_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("skep-test-").tempdir().unwrap()
}

/// Asserts that the message of a refusal names no route, unless it is about an unknown one: a caller and a user of the
/// command both read it.
#[cfg(any(feature = "binary", feature = "service"))]
#[track_caller]
fn assert_names_no_route(code: &str, message: &str) {
    assert!(
        code == "unknown_route" || ![" /api/", "`/api/"].iter().any(|route| message.contains(route)),
        "{code}: {message}"
    );
}
