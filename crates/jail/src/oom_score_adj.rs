//! Which process the kernel kills first when the machine is out of memory: a VM, never what holds the others.

use std::{fs, io};

/// The score of the keeper: its end would end no VM, and leave all of them without a parent.
pub const KEEPER: i16 = -900;
/// The score of the server and of the egress process.
pub const SERVER: i16 = -800;
/// The score of a helper. Its programs inherit it: they cannot change their own, because they begin as copies of a process
/// that is not dumpable.
pub const HELPER: i16 = 500;
/// The score of a VMM.
pub const VMM: i16 = 500;

/// Sets the score of the calling process, see `oom_score_adj` in proc(5). Without privileges a score cannot be lowered, and
/// stays as it is.
///
/// # Errors
/// The file cannot be written.
pub fn set(value: i16) -> io::Result<()> {
    match fs::write("/proc/self/oom_score_adj", value.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}
