//! The zygote: a `/bin/sh` that is loaded and linked and stands at the first instruction of its own program, for good.
//! What it has done so far is the same for all commands; each gets a copy.

use std::{
    fs,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use rustix::{
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
        sendmsg, socketpair,
    },
    process::{Pid, WaitStatus},
};

use super::{
    facts::Facts,
    files::Files,
    scratch::{self, MemoryMap},
    stack::{ARGUMENTS, Image, PLACEHOLDER, Stack, spare_environment},
    trace::{self, Attention, Registers, Tracee},
};

/// How often a zygote is looked at while it is linked, and for how long.
const GLANCE: Duration = Duration::from_millis(1);
const LINK_LIMIT: Duration = Duration::from_secs(30);
const BREAKPOINT: u64 = 0xCC;
/// Where a zygote holds its end of the socket. All below is free, for what a copy is given.
const SOCKET: u64 = 3;
/// As glibc's own `fork` has them, and the parent and the tracer of its zygote.
const CLONE_FLAGS: i32 = libc::CLONE_PARENT
    | libc::CLONE_PTRACE
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::SIGCHLD;

/// A shell that is linked and never runs.
#[derive(Debug)]
pub(super) struct Zygote {
    tracee: Tracee,
    thread: ThreadId,
    /// At the first instruction of the program.
    registers: Registers,
    stack: Stack,
    memory: MemoryMap,
    /// Where it keeps its thread's id.
    tid_address: u64,
    files: Files,
    /// The directory that it stands in.
    directory: (u64, u64),
    socket: OwnedFd,
}

/// Starts a shell in this directory that will be a zygote, and returns our end of its socket with it.
pub(super) fn spawn(directory: &Path) -> io::Result<(Child, OwnedFd)> {
    let (socket, its_socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(ARGUMENTS[0]);
    command.args(&ARGUMENTS[1..]).arg(PLACEHOLDER).env_clear().envs(spare_environment());
    command.current_dir(directory);
    command.stdin(its_socket).stdout(Stdio::null()).stderr(Stdio::null());
    trace::stop_at_start(&mut command);
    Ok((command.spawn()?, socket))
}

impl Zygote {
    /// Waits until this shell is linked, and makes it a zygote.
    pub(super) async fn link(pid: Pid, directory: &Path, socket: OwnedFd) -> io::Result<Self> {
        let mut tracee = Tracee::new(pid);
        next_trap(pid).await?;
        tracee.end_with_tracer()?;
        let facts = Facts::of(pid.as_raw_pid().unsigned_abs())?;
        let registers = run_to(&tracee, facts.entry).await?;
        facts.stack.check(|at, bytes| tracee.read(at, bytes))?;
        if registers.rsp != facts.memory.stack {
            return Err(io::Error::other("the shell moved its stack before it began"));
        }
        tracee.set_gate(facts.gate(|at, bytes| tracee.read(at, bytes))?);
        let (tid_address, memory) = furnish(&tracee, &registers, facts.memory)?;
        let files = Files::of(&fs::read_to_string(format!("/proc/{}/maps", pid.as_raw_pid()))?)?;
        let directory = number(directory)?;
        let (thread, stack) = (thread::current().id(), facts.stack);
        Ok(Self { tracee, thread, registers, stack, memory, tid_address, files, directory, socket })
    }

    /// Whether this thread may ask for copies, and for what is done to them.
    pub(super) fn is_of_this_thread(&self) -> bool {
        self.thread == thread::current().id()
    }

    /// Whether `/bin/sh` would be the same.
    pub(super) fn is_current(&self) -> bool {
        self.files.are_the_same()
    }

    /// Whether copies stand in this directory.
    pub(super) fn stands_in(&self, directory: &Path) -> bool {
        number(directory).is_ok_and(|number| number == self.directory)
    }

    pub(super) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Makes a copy, which is a child of ours and stopped. It has yet to be equipped.
    ///
    /// After an error here or in what follows the zygote is of no more use.
    pub(super) fn copy(&self, attention: &Attention) -> io::Result<Pid> {
        let flags = i64::from(CLONE_FLAGS) as u64;
        let pid = self.tracee.call(
            attention,
            &self.registers,
            libc::SYS_clone,
            &[flags, 0, 0, self.tid_address],
        )?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Gives a copy its standard streams and a session of its own.
    pub(super) fn equip(
        &self,
        attention: &Attention,
        copy: Pid,
        streams: [&OwnedFd; 3],
    ) -> io::Result<Tracee> {
        attention.next_stop(copy)?;
        let tracee = self.tracee.twin(copy);
        let streams = streams.map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&streams));
        sendmsg(&self.socket, &[IoSlice::new(b".")], &mut control, SendFlags::DONTWAIT)?;
        // They take the lowest free numbers, which are those of the standard streams.
        let message = [SOCKET, scratch::message(&self.registers), libc::MSG_DONTWAIT as u64];
        tracee.call(attention, &self.registers, libc::SYS_recvmsg, &message)?;
        tracee.call(attention, &self.registers, libc::SYS_close, &[SOCKET])?;
        tracee.call(attention, &self.registers, libc::SYS_setsid, &[])?;
        Ok(tracee)
    }

    /// Lets a copy run as the shell of a command, in this directory where it is not the zygote's own.
    pub(super) fn run(&self, copy: &Tracee, image: &Image, directory: Option<&Path>) -> io::Result<()> {
        let attention = &Attention::pay()?;
        // Sent while it waited, it is not for the command.
        if copy.has_signal()? {
            return Err(io::Error::other("a signal waits for the shell"));
        }
        if let Some(directory) = directory {
            let path = scratch::write_path(copy, &self.registers, directory)?;
            copy.call(attention, &self.registers, libc::SYS_chdir, &[path])?;
        }
        let map_at = scratch::map(&self.registers);
        copy.write(&[
            (image.pointers_at, &image.pointers),
            (image.texts_at, &image.texts),
            (map_at, &self.memory.with_texts(image).to_bytes()),
        ])?;
        // A listing of processes shows the command.
        copy.call(attention, &self.registers, libc::SYS_prctl, &MemoryMap::arguments(map_at))?;
        copy.set_registers(&self.registers)?;
        copy.detach()
    }
}

/// Runs it up to this instruction, and returns its registers there.
async fn run_to(tracee: &Tracee, address: u64) -> io::Result<Registers> {
    let mut code = [0; size_of::<u64>()];
    tracee.read(address, &mut code)?;
    let code = u64::from_le_bytes(code);
    tracee.poke(address, code & !0xFF | BREAKPOINT)?;
    tracee.go_on()?;
    next_trap(tracee.pid()).await?;
    tracee.poke(address, code)?;
    let registers = tracee.registers()?;
    // The breakpoint's own byte is behind it.
    if registers.rip != address + 1 {
        return Err(io::Error::other("the shell stopped elsewhere"));
    }
    Ok(Registers { rip: address, ..registers })
}

/// Waits for a trap that takes its time, beside whatever else is to be done.
async fn next_trap(pid: Pid) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match trace::change(pid)? {
            Some(status) if trace::is_trap(status) => return Ok(()),
            Some(status) => return Err(unexpected(status)),
            None if began.elapsed() > LINK_LIMIT => return Err(io::ErrorKind::TimedOut.into()),
            None => tokio::time::sleep(GLANCE).await,
        }
    }
}

fn unexpected(status: WaitStatus) -> io::Error {
    io::Error::other(format!("the shell did not wait: status {:#x}", status.as_raw()))
}

/// Makes the process what its copies are to be.
fn furnish(tracee: &Tracee, registers: &Registers, memory: MemoryMap) -> io::Result<(u64, MemoryMap)> {
    let attention = Attention::pay()?;
    free_streams(&attention, tracee, registers)?;
    scratch::furnish(&attention, tracee, registers, memory)
}

/// Leaves it with nothing open but the socket, behind where its copies will have their streams.
fn free_streams(attention: &Attention, tracee: &Tracee, registers: &Registers) -> io::Result<()> {
    let moved = tracee.call(attention, registers, libc::SYS_fcntl, &[0, libc::F_DUPFD as u64, SOCKET])?;
    if moved as u64 != SOCKET {
        return Err(io::Error::other("the shell has more open than it was given"));
    }
    for stream in 0..SOCKET {
        tracee.call(attention, registers, libc::SYS_close, &[stream])?;
    }
    Ok(())
}

fn number(directory: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(directory).map(|of| (of.dev(), of.ino()))
}
