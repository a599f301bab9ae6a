//! Lines on the VM's console.

use std::io::{Write, stderr};

/// Writes a line. That nobody listens is no reason to stop.
pub(crate) fn say(line: &str) {
    let _ = writeln!(stderr(), "skep-agent: {line}");
}
