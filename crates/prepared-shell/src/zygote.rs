//! The zygote: a `/bin/sh` that is loaded, linked and stopped at the first instruction of its program. It never runs;
//! each command gets a copy of it.

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

use crate::{
    loaded_files::LoadedFiles,
    process_layout::ProcessLayout,
    scratch::{MemoryMap, Scratch},
    stack::{ARGUMENTS, PLACEHOLDER, Stack, StackImage, placeholder_environment},
    syscalls::{ROUTINE_BYTES, SyscallInjector},
    trace::{self, Registers, SigchldBlock, Tracee},
};

/// The interval and the time limit of waiting for a zygote to be linked.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const LINK_LIMIT: Duration = Duration::from_secs(30);
const BREAKPOINT: u64 = 0xCC;
/// The descriptor of the zygote's end of the socket. Lower ones are free for the standard streams of a copy.
const SOCKET: u64 = 3;
/// The flags of glibc's `fork`, plus those that give copies the parent and the tracer of the zygote.
const CLONE_FLAGS: i32 = libc::CLONE_PARENT
    | libc::CLONE_PTRACE
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::SIGCHLD;

/// A linked shell that is only copied and never runs.
#[derive(Debug)]
pub(crate) struct Zygote {
    tracee: Tracee,
    thread: ThreadId,
    syscalls: SyscallInjector,
    stack: Stack,
    scratch: Scratch,
    memory: MemoryMap,
    files: LoadedFiles,
    /// Device and inode of its working directory.
    directory: (u64, u64),
    socket: OwnedFd,
}

/// Starts the shell of a zygote in this directory, and returns our end of its socket.
pub(crate) fn spawn(directory: &Path) -> io::Result<(Child, OwnedFd)> {
    let (socket, its_socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(ARGUMENTS[0]);
    command.args(&ARGUMENTS[1..]).arg(PLACEHOLDER).env_clear().envs(placeholder_environment());
    command.current_dir(directory);
    command.stdin(its_socket).stdout(Stdio::null()).stderr(Stdio::null());
    trace::stop_at_start(&mut command);
    Ok((command.spawn()?, socket))
}

impl Zygote {
    /// Waits until the shell is linked, and turns it into a zygote.
    pub(crate) async fn link(pid: Pid, directory: &Path, socket: OwnedFd) -> io::Result<Self> {
        let tracee = Tracee::new(pid);
        next_trap(pid).await?;
        tracee.kill_on_tracer_exit()?;
        let layout = ProcessLayout::of(pid.as_raw_pid().unsigned_abs())?;
        let registers = run_to(&tracee, layout.entry).await?;
        let read = |at, bytes: &mut [u8]| tracee.read(at, bytes);
        layout.stack.check(read)?;
        if registers.rsp != layout.memory.stack {
            return Err(io::Error::other("the shell moved its stack before it began"));
        }
        let files = LoadedFiles::of(&fs::read_to_string(format!("/proc/{}/maps", pid.as_raw_pid()))?)?;
        let mut zygote = Self {
            tracee,
            thread: thread::current().id(),
            syscalls: SyscallInjector::install(
                &tracee,
                layout.find_code_gap(ROUTINE_BYTES, read)?,
                registers,
            )?,
            scratch: Scratch::below(registers.rsp),
            stack: layout.stack,
            memory: layout.memory,
            files,
            directory: file_id(directory)?,
            socket,
        };
        zygote.initialise()?;
        Ok(zygote)
    }

    /// Sets up the state that copies inherit, and writes the structures they need. Fails where the kernel would refuse
    /// one of the system calls to the copies.
    fn initialise(&mut self) -> io::Result<()> {
        let sigchld_block = SigchldBlock::new()?;
        let (scratch, dup) = (self.scratch, libc::F_DUPFD as u64);
        let table = self.syscalls.table(&[
            (libc::SYS_fcntl, &[0, dup, SOCKET]),
            (libc::SYS_close, &[0]),
            (libc::SYS_close, &[1]),
            (libc::SYS_close, &[2]),
            (libc::SYS_prctl, &[libc::PR_GET_TID_ADDRESS as u64, scratch.tid()]),
            (libc::SYS_brk, &[0]),
        ]);
        self.tracee.write(&[(scratch.zygote_table(), &table)])?;
        let results = self.syscalls.execute(&sigchld_block, &self.tracee, scratch.zygote_table())?;
        let [socket, .., heap_end]: [i64; 6] = results;
        if socket as u64 != SOCKET {
            return Err(io::Error::other("the shell has more open than it was given"));
        }
        self.memory.heap[1] = heap_end as u64;
        let mut tid_address = [0; size_of::<u64>()];
        self.tracee.read(scratch.tid(), &mut tid_address)?;
        let map = self.syscalls.table(&[(libc::SYS_prctl, &MemoryMap::arguments(scratch.map()))]);
        let map_pieces: [(u64, &[u8]); 2] =
            [(scratch.zygote_table(), &map), (scratch.map(), &self.memory.to_bytes())];
        self.tracee.write(&map_pieces)?;
        let _: [i64; 1] = self.syscalls.execute(&sigchld_block, &self.tracee, scratch.zygote_table())?;
        self.write_tables(u64::from_le_bytes(tid_address))
    }

    fn write_tables(&self, tid_address: u64) -> io::Result<()> {
        let (scratch, caller) = (self.scratch, &self.syscalls);
        let flags = i64::from(CLONE_FLAGS) as u64;
        let clone = caller.table(&[(libc::SYS_clone, &[flags, 0, 0, tid_address])]);
        let equip = caller.table(&[
            // The descriptors take the lowest free numbers, which are those of the standard streams.
            (libc::SYS_recvmsg, &[SOCKET, scratch.message(), libc::MSG_DONTWAIT as u64]),
            (libc::SYS_close, &[SOCKET]),
            (libc::SYS_setsid, &[]),
        ]);
        scratch.write_message(&self.tracee)?;
        self.tracee.write(&[(scratch.zygote_table(), &clone), (scratch.copy_table(), &equip)])
    }

    /// Whether the calling thread is the one that traces the zygote, and so may copy it.
    pub(crate) fn is_traced_by_this_thread(&self) -> bool {
        self.thread == thread::current().id()
    }

    /// Whether a new `/bin/sh` would be loaded from the same files.
    pub(crate) fn is_current(&self) -> bool {
        self.files.are_unchanged()
    }

    /// Whether `directory` is the working directory of the copies.
    pub(crate) fn has_cwd(&self, directory: &Path) -> bool {
        file_id(directory).is_ok_and(|number| number == self.directory)
    }

    pub(crate) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Makes a copy, which is stopped and a child of this process. [`Self::set_up_copy`] must follow.
    ///
    /// After an error here or in a later step, the zygote must be discarded.
    pub(crate) fn copy(&self, attention: &SigchldBlock) -> io::Result<Pid> {
        let [pid] = self.syscalls.execute(attention, &self.tracee, self.scratch.zygote_table())?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Gives a copy its standard streams and its own session.
    pub(crate) fn set_up_copy(
        &self,
        attention: &SigchldBlock,
        copy: Pid,
        streams: [&OwnedFd; 3],
    ) -> io::Result<Tracee> {
        let tracee = Tracee::new(copy);
        let streams = streams.map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&streams));
        sendmsg(&self.socket, &[IoSlice::new(b".")], &mut control, SendFlags::DONTWAIT)?;
        attention.next_stop(copy)?;
        let _: [i64; 3] = self.syscalls.execute(attention, &tracee, self.scratch.copy_table())?;
        Ok(tracee)
    }

    /// Lets a copy run as the shell of a command. `directory` is given if it is not the zygote's own.
    pub(crate) fn run(&self, copy: &Tracee, image: &StackImage, directory: Option<&Path>) -> io::Result<()> {
        let scratch = self.scratch;
        // A signal that was sent before belongs to no command.
        if copy.has_signal()? {
            return Err(io::Error::other("a signal waits for the shell"));
        }
        if let Some(directory) = directory {
            let table = self.syscalls.table(&[(libc::SYS_chdir, &[scratch.path()])]);
            scratch.write_path(copy, directory)?;
            copy.write(&[(scratch.copy_table(), &table)])?;
            let _: [i64; 1] = self.syscalls.execute(&SigchldBlock::new()?, copy, scratch.copy_table())?;
        }
        // Makes process listings show the command.
        let map = (libc::SYS_prctl, &MemoryMap::arguments(scratch.map())[..]);
        copy.write(&[
            (image.pointers_at, &image.pointers),
            (image.texts_at, &image.texts),
            (scratch.map(), &self.memory.with_texts(image).to_bytes()),
            (scratch.last_table(), &self.syscalls.last_table(&[map])),
        ])?;
        self.syscalls.set_next_table(copy, scratch.last_table())?;
        copy.detach()
    }
}

/// Runs a process up to this instruction, and returns its registers there.
async fn run_to(tracee: &Tracee, address: u64) -> io::Result<Registers> {
    let mut code = [0; size_of::<u64>()];
    tracee.read(address, &mut code)?;
    let code = u64::from_le_bytes(code);
    tracee.poke(address, code & !0xFF | BREAKPOINT)?;
    tracee.resume()?;
    next_trap(tracee.pid()).await?;
    tracee.poke(address, code)?;
    let registers = tracee.registers()?;
    // After a breakpoint, `rip` points behind its byte.
    if registers.rip != address + 1 {
        return Err(io::Error::other("the shell stopped elsewhere"));
    }
    Ok(Registers { rip: address, ..registers })
}

/// Waits for a trap without blocking the thread.
async fn next_trap(pid: Pid) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match trace::poll_status(pid)? {
            Some(status) if trace::is_trap(status) => return Ok(()),
            Some(status) => return Err(unexpected(status)),
            None if began.elapsed() > LINK_LIMIT => return Err(io::ErrorKind::TimedOut.into()),
            None => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

fn unexpected(status: WaitStatus) -> io::Error {
    io::Error::other(format!("the shell did not wait: status {:#x}", status.as_raw()))
}

fn file_id(directory: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(directory).map(|of| (of.dev(), of.ino()))
}
