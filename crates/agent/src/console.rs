//! Lines on the VM's console.

use std::io::{Write, stderr};

/// Writes a line. Errors are ignored.
pub(crate) fn log(line: &str) {
    let _ = writeln!(stderr(), "skep-agent: {line}");
}
