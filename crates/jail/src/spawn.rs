//! Starts a process through a stage, and controls it afterwards.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::{Timeout, set_socket_timeout},
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid},
};

use crate::{
    Confinement, Error, ProcessSpec,
    stage::{Report, StageMessage},
};

/// Time limit of a stage, which takes milliseconds, or longer on a machine that swaps.
const STAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Descriptors for a new process.
#[derive(Debug, Default)]
pub struct Handles {
    /// Files by which it joins its cgroup, see [`crate::Cgroup::open_procs_files`].
    pub cgroup_procs_files: Vec<OwnedFd>,
    /// Its standard error. `None`: /dev/null. Only for [`Confinement::Jail`].
    pub stderr: Option<OwnedFd>,
    /// Inherited descriptors, numbered from 3.
    pub inherited: Vec<OwnedFd>,
}

/// A running process. Dropping this value does not affect it.
#[derive(Debug)]
pub struct Jailed {
    /// Process id in the host's PID namespace. For signals use the pidfd.
    pub pid: u32,
    pub pidfd: OwnedFd,
}

impl Jailed {
    /// Kills the process. Succeeds if it has already ended.
    ///
    /// # Errors
    /// The system call failed.
    pub fn kill(&self) -> Result<(), Error> {
        self.signal(Signal::KILL)
    }

    /// Sends a signal. Succeeds if the process has already ended.
    ///
    /// # Errors
    /// The system call failed.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::io(format!("signal for process {}", self.pid))(error)),
        }
    }

    /// Waits until the process has ended. `false` after the timeout.
    ///
    /// # Errors
    /// The system call failed.
    pub fn wait(&self, patience: Duration) -> Result<bool, Error> {
        let patience =
            Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
        let mut ends = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut ends, Some(&patience)))
            .map(|ready| ready > 0)
            .map_err(Error::io(format!("wait for process {}", self.pid)))
    }

    /// Reaps the process and returns its exit status. `None` if it has not ended or is not a child of this process,
    /// which is the parent of jailed processes only as a child subreaper.
    pub fn reap(&self) -> Option<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options).ok()??;
        status
            .exit_status()
            .map(|code| ExitStatus::from_raw(code << 8))
            .or_else(|| status.terminating_signal().map(ExitStatus::from_raw))
    }
}

/// Starts a process. `binary` is a program whose `stage` argument runs [`crate::stage::main`], usually this one. Blocks
/// for some milliseconds, until the program runs.
///
/// # Errors
/// A step failed; the message names it. Nothing is left behind then, except possibly a dying process in the cgroup.
pub fn spawn(binary: &Path, order: &ProcessSpec, handles: Handles) -> Result<Jailed, Error> {
    let (here, there) = skep_packet::pair().map_err(Error::io("socket pair for a stage"))?;
    set_socket_timeout(&here, Timeout::Recv, Some(STAGE_TIMEOUT))
        .map_err(Error::io("time limit for a stage"))?;
    let sent = StageMessage { order: order.clone(), cgroup_doors: handles.cgroup_procs_files.len() };
    let text = serde_json::to_vec(&sent).map_err(|error| Error::Stage(error.to_string()))?;
    let mut child = start(binary, order, there, handles.stderr)?;

    let outcome = send_spec(&here, &text, &handles.cgroup_procs_files, &handles.inherited)
        .and_then(|()| receive_reports(&here, &order.confinement, &child));
    if outcome.is_err() {
        let _ = child.kill();
    }
    // With new namespaces the stage exits at once and is reaped here. Without them the stage became the program, whose
    // status is for `reap`.
    if outcome.is_err() || order.confinement.has_namespaces() {
        let _ = child.wait();
    }
    outcome
}

fn start(
    binary: &Path,
    order: &ProcessSpec,
    socket: OwnedFd,
    stderr: Option<OwnedFd>,
) -> Result<Child, Error> {
    let mut command = Command::new(binary);
    command.arg0("skep").arg("stage").env_clear().stdin(socket);
    if matches!(order.confinement, Confinement::Jail(_)) {
        command.stdout(Stdio::null()).stderr(stderr.map_or_else(Stdio::null, Stdio::from));
    }
    command.spawn().map_err(Error::io(format!("start of {}", binary.display())))
}

fn send_spec(socket: &OwnedFd, text: &[u8], doors: &[OwnedFd], inherited: &[OwnedFd]) -> Result<(), Error> {
    let all: Vec<BorrowedFd<'_>> = doors.iter().chain(inherited).map(AsFd::as_fd).collect();
    skep_packet::send(socket, text, &all).map_err(Error::io("order for a stage"))
}

/// Reads the reports of the stage: first the PID, then an error if a step failed. On success the socket closes without
/// a further report, by `execve`.
fn receive_reports(socket: &OwnedFd, confinement: &Confinement, child: &Child) -> Result<Jailed, Error> {
    let mut jailed = match confinement {
        Confinement::User | Confinement::SameUser(_) => Some(open_child(child)?),
        Confinement::Secluded(_) | Confinement::Jail(_) => None,
    };
    loop {
        let packet = skep_packet::receive(socket).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Error::Stage(format!("no answer within {} s", STAGE_TIMEOUT.as_secs()))
            }
            _ => Error::io("report of a stage")(error),
        });
        let report = packet.and_then(|packet| packet.map(read_report).transpose());
        match report {
            Ok(Some((Report::Started { pid }, Some(pidfd)))) => jailed = Some(Jailed { pid, pidfd }),
            Ok(None) => {
                return jailed.ok_or_else(|| Error::Stage("the stage ended without a report".to_owned()));
            }
            Ok(Some((Report::Failed { message }, _))) => {
                return Err(kill_and_fail(jailed, Error::Stage(message)));
            }
            Ok(Some(_)) => {
                return Err(kill_and_fail(jailed, Error::Stage("a report without a pidfd".to_owned())));
            }
            Err(error) => return Err(kill_and_fail(jailed, error)),
        }
    }
}

fn kill_and_fail(jailed: Option<Jailed>, error: Error) -> Error {
    if let Some(jailed) = jailed {
        let _ = jailed.kill();
        let _ = jailed.wait(Duration::from_secs(5));
        jailed.reap();
    }
    error
}

fn open_child(child: &Child) -> Result<Jailed, Error> {
    let pid = Pid::from_child(child);
    // The child is not reaped yet, so its PID cannot have been reused.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(Error::io("pidfd of a process"))?;
    Ok(Jailed { pid: child.id(), pidfd })
}

fn read_report(packet: skep_packet::Packet) -> Result<(Report, Option<OwnedFd>), Error> {
    let report = serde_json::from_slice(&packet.bytes).map_err(|error| Error::Stage(error.to_string()))?;
    Ok((report, packet.descriptors.into_iter().next()))
}
