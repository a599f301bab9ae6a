//! A process stopped under `ptrace`: access to its registers and memory.
//!
//! Only the thread that started to trace a process may use these functions; the kernel refuses others.

use std::{
    cell::{Cell, RefCell},
    ffi::c_uint,
    io, mem,
    os::unix::process::CommandExt,
    process::Command,
    ptr,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};

/// The time limit for a stop that is expected at once.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// The longest single wait for a signal, since another thread may have received it instead.
const SIGNAL_WAIT: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const NO_WAIT: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
const SIGTRAP: i32 = libc::SIGTRAP;

pub(crate) type Registers = libc::user_regs_struct;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Tracee {
    pid: Pid,
}

/// Makes a command stop as soon as its program is loaded, traced by the calling thread.
pub(crate) fn stop_at_start(command: &mut Command) {
    let trace_me = || {
        rustix::process::setsid()?;
        rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
        // SAFETY: this request takes no arguments.
        succeeded(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) }).map(drop)
    };
    // SAFETY: between fork and exec only three plain system calls run; nothing allocates or takes a lock.
    unsafe { command.pre_exec(trace_me) };
}

/// The change of the process's state since the last call, if there was one.
pub(crate) fn poll_status(pid: Pid) -> io::Result<Option<WaitStatus>> {
    Ok(waitpid(Some(pid), WaitOptions::NOHANG)?.map(|(_, status)| status))
}

/// Whether it was stopped by a breakpoint or by the start of its program.
pub(crate) fn is_trap(status: WaitStatus) -> bool {
    status.stopping_signal() == Some(SIGTRAP)
}

/// Blocks SIGCHLD on this thread, so that expected stops do not interrupt it or wake the reaper. Meanwhile
/// [`SigchldBlock::next_stop`] receives the signals.
#[derive(Debug)]
pub(crate) struct SigchldBlock {
    before: libc::sigset_t,
    /// Processes whose stops are expected here.
    expected: RefCell<Vec<Pid>>,
    /// Whether a SIGCHLD for another child was received.
    received_other: Cell<bool>,
}

impl SigchldBlock {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a signal set is an array of integers, for which every bit pattern is valid.
        let mut before = unsafe { mem::zeroed() };
        // SAFETY: both sets outlive the call.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &sigchld_set(), &mut before) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        Ok(Self { before, expected: RefCell::default(), received_other: Cell::new(false) })
    }

    /// Blocks until the process stops, which is expected at once.
    pub(crate) fn next_stop(&self, pid: Pid) -> io::Result<WaitStatus> {
        self.expected.borrow_mut().push(pid);
        let began = Instant::now();
        loop {
            if let Some(status) = poll_status(pid)? {
                return if status.stopped() { Ok(status) } else { Err(io::Error::other("it ended")) };
            }
            if began.elapsed() > STOP_LIMIT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Waits only briefly: another thread may have received the signal instead.
            self.take_signal(&SIGNAL_WAIT);
        }
    }

    /// Waits for a SIGCHLD, at most for `limit`.
    fn take_signal(&self, limit: &libc::timespec) {
        // SAFETY: every bit pattern of a `siginfo_t` is valid.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        // SAFETY: all three outlive the call.
        let signal = unsafe { libc::sigtimedwait(&sigchld_set(), &mut info, limit) };
        if signal != libc::SIGCHLD {
            return;
        }
        // SAFETY: SIGCHLD carries the process id of a child.
        let child = unsafe { info.si_pid() };
        if !self.expected.borrow().iter().any(|pid| pid.as_raw_pid() == child) {
            self.received_other.set(true);
        }
    }
}

impl Drop for SigchldBlock {
    fn drop(&mut self) {
        // A pending signal of an expected stop is dropped.
        self.take_signal(&NO_WAIT);
        // SAFETY: the set outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
        if self.received_other.get() {
            // Notifies the reaper of the other child.
            let _ = kill_process(getpid(), Signal::CHILD);
        }
    }
}

fn sigchld_set() -> libc::sigset_t {
    // SAFETY: a signal set is an array of integers, for which every bit pattern is valid.
    let mut set = unsafe { mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigaddset(&mut set, libc::SIGCHLD) };
    set
}

impl Tracee {
    /// A process that is stopped or about to stop.
    pub(crate) fn new(pid: Pid) -> Self {
        Self { pid }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Makes the kernel kill it when the tracer exits.
    pub(crate) fn kill_on_tracer_exit(&self) -> io::Result<()> {
        self.request(libc::PTRACE_SETOPTIONS, 0, libc::PTRACE_O_EXITKILL as usize)
    }

    /// Resumes it until its next stop.
    pub(crate) fn resume(&self) -> io::Result<()> {
        self.request(libc::PTRACE_CONT, 0, 0)
    }

    /// Resumes it and stops tracing.
    pub(crate) fn detach(&self) -> io::Result<()> {
        self.request(libc::PTRACE_DETACH, 0, 0)
    }

    pub(crate) fn registers(&self) -> io::Result<Registers> {
        // SAFETY: registers are integers, for which every bit pattern is valid.
        let mut registers: Registers = unsafe { mem::zeroed() };
        let to = ptr::from_mut(&mut registers);
        // SAFETY: the request writes one such structure.
        succeeded(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid.as_raw_pid(), 0usize, to) })?;
        Ok(registers)
    }

    pub(crate) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let from = ptr::from_ref(registers);
        // SAFETY: the request reads one such structure.
        succeeded(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid.as_raw_pid(), 0usize, from) })
            .map(drop)
    }

    /// Writes one word, also to memory that the process itself may not write.
    pub(crate) fn poke(&self, address: u64, word: u64) -> io::Result<()> {
        self.request(libc::PTRACE_POKETEXT, address as usize, word as usize)
    }

    /// Whether a signal is pending for it.
    pub(crate) fn has_signal(&self) -> io::Result<bool> {
        for queue in [0, libc::PTRACE_PEEKSIGINFO_SHARED] {
            let which = libc::ptrace_peeksiginfo_args { off: 0, flags: queue, nr: 1 };
            // SAFETY: every bit pattern of a `siginfo_t` is valid.
            let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
            let (which, info) = (ptr::from_ref(&which), ptr::from_mut(&mut info));
            // SAFETY: the request reads the first structure and writes at most `nr` elements of the other.
            let found = unsafe { libc::ptrace(libc::PTRACE_PEEKSIGINFO, self.pid.as_raw_pid(), which, info) };
            if succeeded(found)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let local = vector(bytes.as_mut_ptr().cast(), bytes.len());
        let remote = vector(address as *mut _, bytes.len());
        // SAFETY: our side is a writable slice; the other side is not memory of this process.
        let count = unsafe { libc::process_vm_readv(self.pid.as_raw_pid(), &local, 1, &remote, 1, 0) };
        complete(count, bytes.len())
    }

    /// Writes to memory that the process itself may write.
    pub(crate) fn write(&self, pieces: &[(u64, &[u8])]) -> io::Result<()> {
        let local: Vec<_> =
            pieces.iter().map(|(_, bytes)| vector(bytes.as_ptr().cast_mut().cast(), bytes.len())).collect();
        let remote: Vec<_> =
            pieces.iter().map(|(address, bytes)| vector(*address as *mut _, bytes.len())).collect();
        let count = pieces.len() as libc::c_ulong;
        // SAFETY: our side is slices that are only read; the other side is not memory of this process.
        let written = unsafe {
            libc::process_vm_writev(self.pid.as_raw_pid(), local.as_ptr(), count, remote.as_ptr(), count, 0)
        };
        complete(written, pieces.iter().map(|(_, bytes)| bytes.len()).sum())
    }

    fn request(&self, kind: c_uint, address: usize, data: usize) -> io::Result<()> {
        // SAFETY: callers pass only requests whose arguments are numbers or addresses in the traced process.
        succeeded(unsafe { libc::ptrace(kind, self.pid.as_raw_pid(), address, data) }).map(drop)
    }
}

fn vector(base: *mut libc::c_void, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base, iov_len: length }
}

fn succeeded(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn complete(count: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(count) {
        Ok(count) if count == wanted => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
