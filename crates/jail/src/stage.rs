//! The stage: this binary, started again to jail itself and execute another program.
//!
//! ```text
//! caller ──spec, descriptors───▶ stage: session, cgroup, namespaces
//!        ◀──pid and pidfd──────────┤ fork
//!        ◀──error, or EOF──────── pid 1 inside: root, uid, capabilities, rlimits, seccomp, execve
//! ```
//!
//! The first process exits after it reported the PID of the second, so the program does not depend on any other
//! process.

mod descriptors;
mod privileges;
mod root;
mod seclusion;

use std::{
    convert::Infallible,
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Command, ExitCode},
};

use rustix::{
    process::{
        Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, set_parent_process_death_signal, setrlimit,
        setsid, umask,
    },
    thread::{UnshareFlags, disable_transparent_huge_pages, unshare_unsafe},
};
use serde::{Deserialize, Serialize};

use crate::{
    Confinement, FilteredProcess, Jail, ProcessSpec, ResourceLimits, Session, oom_score_adj, seccomp,
};

/// The running binary itself, for users who cannot access its folder, and in case the file was replaced.
pub const SELF_EXE: &str = "/proc/self/exe";

/// The message to a stage. The attached descriptors are first the `cgroup.procs` files, then the inherited ones.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StageMessage {
    pub(crate) order: ProcessSpec,
    pub(crate) cgroup_doors: usize,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The process exists. Its pidfd is attached.
    Started { pid: u32 },
    /// The program could not be executed.
    Failed { message: String },
}

/// The message of a failed step, for the caller's log.
struct StageError(String);

/// Adds the name of a step to an error.
trait Step<T> {
    fn step(self, what: &str) -> Result<T, StageError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: &str) -> Result<T, StageError> {
        self.map_err(|error| StageError(format!("{what}: {}", error.into())))
    }
}

/// Runs `skep stage`. Receives its message over standard input, a socket. Must be called before a second thread exists.
pub fn main() -> ExitCode {
    // Without a socket, for example on a terminal, there is no caller to report to.
    let Ok(socket) = descriptors::take_stdin() else { return ExitCode::FAILURE };
    match run(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(StageError(message)) => {
            let _ = report(&socket, &Report::Failed { message }, None);
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &OwnedFd) -> Result<(), StageError> {
    let packet =
        skep_packet::receive(socket).step("message")?.ok_or_else(|| StageError("no message".to_owned()))?;
    let sent: StageMessage = serde_json::from_slice(&packet.bytes).step("message")?;
    let mut procs_files = packet.descriptors;
    let inherited = procs_files.split_off(sent.cgroup_doors.min(procs_files.len()));
    // Before privileges are dropped: only a privileged process may lower it.
    oom_score_adj::set(sent.order.oom_score_adj).step("priority for the OOM killer")?;
    for file in procs_files {
        // 0 means the writing process.
        File::from(file).write_all(b"0").step("join the control group")?;
    }
    match &sent.order.confinement {
        Confinement::User => {
            privileges::drop_all(&sent.order)?;
            // This follows the change of the user, which resets the signal of the parent's death.
            end_with_caller()?;
            execute(&sent.order, inherited).map(|never| match never {})
        }
        Confinement::SameUser(session) => {
            privileges::keep_user(&sent.order)?;
            match session {
                Session::Caller => end_with_caller()?,
                Session::New => _ = setsid().step("new session")?,
            }
            execute(&sent.order, inherited).map(|never| match never {})
        }
        Confinement::Secluded(seclusion) => {
            let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC;
            enter(socket, namespaces, || {
                seclusion::enter(seclusion)?;
                privileges::drop_all(&sent.order)?;
                execute(&sent.order, inherited)
            })
        }
        Confinement::Jail(jail) => {
            let namespaces = UnshareFlags::NEWNS
                | UnshareFlags::NEWPID
                | UnshareFlags::NEWIPC
                | UnshareFlags::NEWUTS
                | UnshareFlags::NEWCGROUP
                | UnshareFlags::NEWNET;
            enter(socket, namespaces, || enter_jail(&sent.order, jail, inherited))
        }
    }
}

fn end_with_caller() -> Result<(), StageError> {
    set_parent_process_death_signal(Some(Signal::KILL)).step("end with the caller")
}

fn enter(
    socket: &OwnedFd,
    namespaces: UnshareFlags,
    settle: impl FnOnce() -> Result<Infallible, StageError>,
) -> Result<(), StageError> {
    // Not in the terminal's process group, so that Ctrl-C reaches only skep itself.
    setsid().step("new session")?;
    // SAFETY: the flags do not contain CLONE_FILES, so the descriptor table is unchanged and `OwnedFd`s stay valid.
    unsafe { unshare_unsafe(namespaces) }.step("new namespaces")?;
    match fork().step("second process")? {
        Some(child) => {
            let pidfd = pidfd_open(child, PidfdFlags::empty()).step("pidfd")?;
            let pid = child.as_raw_nonzero().get().cast_unsigned();
            report(socket, &Report::Started { pid }, Some(pidfd)).step("report")
        }
        None => settle().map(|never| match never {}),
    }
}

/// All steps of pid 1 in the new namespaces, up to the execution of the program.
fn enter_jail(order: &ProcessSpec, jail: &Jail, inherited: Vec<OwnedFd>) -> Result<Infallible, StageError> {
    root::build(order, jail)?;
    rustix::system::sethostname(jail.hostname.as_bytes()).step("host name")?;
    set_rlimits(&jail.limits)?;
    // With huge pages, a few touched bytes of a private mapping would take 2 MiB.
    disable_transparent_huge_pages(true).step("huge pages")?;
    umask(rustix::fs::Mode::from_raw_mode(0o077));
    descriptors::ignore_file_size_signal().step("SIGXFSZ")?;
    privileges::drop_all(order)?;
    seccomp::deny_system_calls(FilteredProcess::Vmm).step("seccomp")?;
    execute(order, inherited)
}

fn set_rlimits(limits: &ResourceLimits) -> Result<(), StageError> {
    let all = [
        (Resource::Nofile, limits.open_files),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nproc, limits.processes),
        (Resource::Core, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
    ];
    for (resource, value) in all {
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
            .step(&format!("limit {resource:?} to {value}"))?;
    }
    Ok(())
}

fn execute(order: &ProcessSpec, inherited: Vec<OwnedFd>) -> Result<Infallible, StageError> {
    descriptors::arrange(inherited).step("descriptors")?;
    let mut command = Command::new(&order.program);
    if order.program == Path::new(SELF_EXE) {
        // Otherwise the path would be its name in lists of processes.
        command.arg0("skep");
    }
    command.args(&order.arguments).env_clear().envs(order.environment.iter().cloned());
    Err::<Infallible, _>(command.exec()).step(&format!("execute {}", order.program.display()))
}

fn report(socket: &OwnedFd, report: &Report, pidfd: Option<OwnedFd>) -> io::Result<()> {
    let text = serde_json::to_vec(report)?;
    let descriptors: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
    skep_packet::send(socket, &text, &descriptors)
}

/// `None` in the child. Refused where there is a second thread, whose locks the child would inherit for good.
fn fork() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the stage has more than one thread"));
    }
    // SAFETY: this process has a single thread, as checked above, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}
