//! Shutdown of the VM. The agent also serves as its `poweroff`, `reboot`, `halt` and `shutdown`.

use std::{path::Path, process::ExitCode};

use rustix::{
    fs::sync,
    system::{RebootCommand, reboot},
};

use crate::console;

/// Whether the program was started under one of these names.
pub(crate) fn is_requested() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    matches!(name, "poweroff" | "reboot" | "halt" | "shutdown")
}

/// Ends the VM. All names do the same: the VMM exits instead of rebooting, and not every machine that it emulates
/// supports powering off.
pub(crate) fn reset() -> ExitCode {
    sync();
    match reboot(RebootCommand::Restart) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::log(&format!("cannot end the VM: {error}"));
            ExitCode::FAILURE
        }
    }
}
