//! Which process the kernel kills first when the machine is out of memory: a VM, never what holds the others.

use std::{fs, io};

/// Of the keeper, whose end would end nothing but leave VMs without a parent.
pub const KEEPER: i16 = -900;
/// Of the server and the egress process.
pub const SERVER: i16 = -800;
/// Of a helper, whose programs inherit it: they cannot raise their own, because they begin as copies of a process that is
/// not dumpable.
pub const HELPER: i16 = 500;
/// Of a VMM.
pub const VMM: i16 = 500;

/// Sets it for the calling process, see `oom_score_adj` in proc(5). Without privileges it cannot be lowered and stays as
/// it is.
///
/// # Errors
/// The file cannot be written.
pub fn set(value: i16) -> io::Result<()> {
    match fs::write("/proc/self/oom_score_adj", value.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}
