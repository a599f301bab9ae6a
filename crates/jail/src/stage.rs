//! The stage: our own binary, started again to jail itself and become another program.
//!
//! ```text
//! caller ──order, descriptors──▶ stage: session, cgroup, namespaces
//!        ◀──pid and pidfd──────────┤ fork
//!        ◀──what failed, or EOF── pid 1 inside: root, uid, capabilities, rlimits, seccomp, execve
//! ```
//!
//! The first process ends as soon as it has told who the second is, so the program outlives everybody.

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

use crate::{Confinement, Jail, Order, ResourceLimits, seccomp};

/// The program that the stage itself runs, for whoever may not reach its folder or finds another file there by now.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// The order as it travels, with the descriptors behind it: the doors of the cgroup first, then what is inherited.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) order: Order,
    pub(crate) cgroup_doors: usize,
}

/// What the stage says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The process exists; with it comes its pidfd.
    Started { pid: u32 },
    /// It does not become the program.
    Failed { message: String },
}

/// A step that failed, in words for the caller's log.
struct Failed(String);

/// Names the step that an error belongs to.
trait Step<T> {
    fn step(self, what: &str) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: &str) -> Result<T, Failed> {
        self.map_err(|error| Failed(format!("{what}: {}", error.into())))
    }
}

/// What `skep stage` does. The order comes over standard input, a socket. Must be called before a second thread exists.
pub fn main() -> ExitCode {
    // A person who tries it on a terminal gets no socket, and nobody to report to.
    let Ok(socket) = descriptors::take_stdin() else { return ExitCode::FAILURE };
    match run(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(message)) => {
            let _ = report(&socket, &Report::Failed { message }, None);
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &OwnedFd) -> Result<(), Failed> {
    let packet =
        skep_packet::receive(socket).step("order")?.ok_or_else(|| Failed("no order came".to_owned()))?;
    let sent: Sent = serde_json::from_slice(&packet.bytes).step("order")?;
    let mut doors = packet.descriptors;
    let inherited = doors.split_off(sent.cgroup_doors.min(doors.len()));
    for door in doors {
        // Zero is the writer itself.
        File::from(door).write_all(b"0").step("join the control group")?;
    }
    match &sent.order.confinement {
        Confinement::User => {
            privileges::drop_all(&sent.order)?;
            // Only now: a change of the user takes it back.
            set_parent_process_death_signal(Some(Signal::KILL)).step("end with the caller")?;
            become_program(&sent.order, inherited).map(|never| match never {})
        }
        Confinement::Secluded(seclusion) => {
            let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC;
            enter(socket, namespaces, || {
                seclusion::enter(seclusion)?;
                privileges::drop_all(&sent.order)?;
                become_program(&sent.order, inherited)
            })
        }
        Confinement::Jail(jail) => {
            let namespaces = UnshareFlags::NEWNS
                | UnshareFlags::NEWPID
                | UnshareFlags::NEWIPC
                | UnshareFlags::NEWUTS
                | UnshareFlags::NEWCGROUP
                | UnshareFlags::NEWNET;
            enter(socket, namespaces, || settle(&sent.order, jail, inherited))
        }
    }
}

fn enter(
    socket: &OwnedFd,
    namespaces: UnshareFlags,
    settle: impl FnOnce() -> Result<Infallible, Failed>,
) -> Result<(), Failed> {
    // Not in the terminal's process group: Ctrl-C there is meant for skep, not for what it starts.
    setsid().step("new session")?;
    // SAFETY: no CLONE_FILES among the flags: the descriptor table stays the one that `OwnedFd` knows.
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

/// Everything between being process 1 of new namespaces and being the program.
fn settle(order: &Order, jail: &Jail, inherited: Vec<OwnedFd>) -> Result<Infallible, Failed> {
    root::build(order, jail)?;
    rustix::system::sethostname(jail.hostname.as_bytes()).step("host name")?;
    limit(&jail.limits)?;
    // Huge pages would turn a few touched bytes of a private mapping into two megabytes.
    disable_transparent_huge_pages(true).step("huge pages")?;
    umask(rustix::fs::Mode::from_raw_mode(0o077));
    descriptors::ignore_file_size_signal().step("SIGXFSZ")?;
    privileges::drop_all(order)?;
    seccomp::deny().step("seccomp")?;
    become_program(order, inherited)
}

fn limit(limits: &ResourceLimits) -> Result<(), Failed> {
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

fn become_program(order: &Order, inherited: Vec<OwnedFd>) -> Result<Infallible, Failed> {
    descriptors::arrange(inherited).step("descriptors")?;
    let mut command = Command::new(&order.program);
    if order.program == Path::new(OWN_PROGRAM) {
        // Or it would carry that path as its name in every list of processes.
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
    // SAFETY: this process has one thread, as was just seen, so the child is as free in what it does as its parent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}
