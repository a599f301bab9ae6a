//! Shells that are loaded, linked, and stopped before the first instruction of their program, until a command is known.
//!
//! # What it saves
//!
//! In an emulated guest, most of the time of a short command goes into loading and linking `/bin/sh`: the first command
//! of a VM was answered after 9 to 12 ms with a shell started on demand, and after 2.7 ms with one started ahead (measured
//! with a prototype, QEMU 7.2 without KVM, two processors). Where no code is translated, `/bin/sh -c true` takes 0.9 ms as
//! a whole (500 runs on the same machine, outside of VMs), so that little can be saved with KVM. The guest agent therefore
//! uses this crate only if the guest is emulated; the bake enables it on the kernel's command line.
//!
//! # What it costs
//!
//! - Two traced processes in each VM, and the time to prepare the next shell after each command. A command that follows at
//!   once waits for that: 30 ms in place of 9 in emulation. Up to 62 ms of a refill of the pool pass until the shell is
//!   ready (`docs/profile-boot.md`).
//! - `ptrace`, machine code and the layout of the stack on x86-64, in `unsafe` code.
//! - All copies of one zygote share the random numbers that the kernel gives to each program it starts (`AT_RANDOM`: stack
//!   protector, pointer guard). The zygote is therefore replaced whenever the VM gets an identity.
//!
//! To measure it: bake with `--shell-ahead off` and with `auto`, and run
//! `skep bench boot -n 100 --mode sequential --commands 200` against each.
//!
//! # How it works
//!
//! ```text
//! zygote (linked once) ── copy ──► ready (streams, session, control group) ── start ──► shell of a command
//! ```
//! A prepared shell behaves like one started by `/bin/sh -c`: its arguments, environment and directory are written to
//! where the kernel would have put them before it executes any of its own instructions.
//!
//! If anything unexpected happens, the caller starts a new shell instead. Only the saved time is lost, so failures are
//! not reported.
//!
//! [`PreparedShell`] is the type by which callers use this crate; they keep track of the processes by [`Processes`].

mod loaded_files;
mod prepared;
mod process_layout;
mod scratch;
mod stack;
mod syscalls;
mod trace;
mod zygote;

use std::{collections::BTreeMap, fmt, io, path::Path, sync::Arc};

use rustix::process::Pid;
use tokio::net::unix::pipe;

pub use prepared::PreparedShell;

/// The parameter of the guest's kernel by which a bake enables prepared shells.
pub const KERNEL_PARAMETER: &str = "skep.prepared_shell=1";

/// Whether the kernel's command line of this guest enables prepared shells.
pub fn is_enabled_by(kernel_command_line: &str) -> bool {
    kernel_command_line.split_ascii_whitespace().any(|word| word == KERNEL_PARAMETER)
}

/// The command for a shell.
#[derive(Debug, Clone, Copy)]
pub struct ShellCommand<'a> {
    /// The argument of `/bin/sh -c --`.
    pub text: &'a str,
    /// All variables of the shell; it inherits no others.
    pub environment: &'a BTreeMap<&'a str, &'a str>,
    pub directory: &'a Path,
    /// Whether the standard input is a pipe. Otherwise it is `/dev/null`.
    pub with_stdin: bool,
}

/// A shell that runs its command, and our ends of its pipes.
#[derive(Debug)]
pub struct StartedShell<P> {
    pub process: P,
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
}

/// The caller's table of child processes.
#[warn(missing_docs)]
pub trait Processes {
    /// A child that the table waits for.
    type Process: fmt::Debug;

    /// Starts a child and adds it to the table. Nothing else may reap it in between.
    ///
    /// # Errors
    /// Those of `start`, or the child cannot be waited for; it was killed and reaped then.
    fn add<T>(&self, start: impl FnOnce() -> io::Result<(Pid, T)>) -> io::Result<(Self::Process, T)>;

    /// Moves a child into a new control group of its own.
    ///
    /// # Errors
    /// The kernel refuses, or there are no control groups.
    fn isolate(&self, process: &mut Self::Process) -> io::Result<()>;

    /// Kills a child without waiting for its end, and removes it with its control group from the table later.
    fn discard(&self, process: Arc<Self::Process>);
}

#[cfg(test)]
mod tests {
    use super::is_enabled_by;

    #[test]
    fn only_the_whole_parameter_enables_prepared_shells() {
        assert!(is_enabled_by("quiet skep.prepared_shell=1\n"));
        assert!(is_enabled_by("skep.prepared_shell=1 -- skep.prepared_shell=0"));
        for other in
            ["", "quiet", "skep.prepared_shell=0", "skep.prepared_shell=10", "askep.prepared_shell=1"]
        {
            assert!(!is_enabled_by(other), "{other}");
        }
    }
}
