//! A process that is stopped under `ptrace`: its registers and its memory.
//!
//! Only the thread that began to trace a process may ask for any of this; from others the kernel refuses it.

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

/// How long a stop that comes at once may take. Nothing is waited for but a processor, so one that takes longer is held
/// up by somebody.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// How long a stop may go unnoticed.
const MOMENT: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
const SIGTRAP: i32 = libc::SIGTRAP;

/// The registers of a stopped process.
pub(super) type Registers = libc::user_regs_struct;

/// A stopped process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tracee {
    pid: Pid,
}

/// Lets this command stop as soon as its program is loaded, traced by the thread that starts it.
pub(super) fn stop_at_start(command: &mut Command) {
    let trace_me = || {
        rustix::process::setsid()?;
        rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
        // SAFETY: this request takes no arguments.
        succeeded(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) }).map(drop)
    };
    // SAFETY: between fork and exec only three plain system calls run, and nothing allocates or takes a lock.
    unsafe { command.pre_exec(trace_me) };
}

/// How it stopped or ended, if it did since it was last asked.
pub(super) fn change(pid: Pid) -> io::Result<Option<WaitStatus>> {
    Ok(waitpid(Some(pid), WaitOptions::NOHANG)?.map(|(_, status)| status))
}

/// Whether it stands where a step, a breakpoint or the start of its program stopped it.
pub(super) fn is_trap(status: WaitStatus) -> bool {
    status.stopping_signal() == Some(SIGTRAP)
}

/// While this exists, nothing tells this thread of its children but [`Attention::next_stop`]: each stop would interrupt
/// it otherwise, and wake whoever reaps.
#[derive(Debug)]
pub(super) struct Attention {
    before: libc::sigset_t,
    /// Whose stops are waited for here.
    ours: RefCell<Vec<Pid>>,
    /// Whether somebody else's child was told of meanwhile.
    others: Cell<bool>,
}

impl Attention {
    pub(super) fn pay() -> io::Result<Self> {
        // SAFETY: a signal set is an array of integers, of which every bit pattern is one.
        let mut before = unsafe { mem::zeroed() };
        // SAFETY: both sets outlive the call.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &deaths_and_stops(), &mut before) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        Ok(Self { before, ours: RefCell::default(), others: Cell::new(false) })
    }

    /// Waits in place for a stop that comes at once.
    pub(super) fn next_stop(&self, pid: Pid) -> io::Result<WaitStatus> {
        self.ours.borrow_mut().push(pid);
        let began = Instant::now();
        loop {
            if let Some(status) = change(pid)? {
                return if status.stopped() { Ok(status) } else { Err(io::Error::other("it ended")) };
            }
            if began.elapsed() > STOP_LIMIT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // No longer than a moment: another thread may have been told instead.
            self.take_signal(&MOMENT);
        }
    }

    /// Waits until a child is told of, at most this long.
    fn take_signal(&self, limit: &libc::timespec) {
        // SAFETY: all bit patterns of a `siginfo_t` are valid.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        // SAFETY: all three outlive the call.
        let signal = unsafe { libc::sigtimedwait(&deaths_and_stops(), &mut info, limit) };
        if signal != libc::SIGCHLD {
            return;
        }
        // SAFETY: this signal is about a child, of which it tells the process id.
        let child = unsafe { info.si_pid() };
        if !self.ours.borrow().iter().any(|pid| pid.as_raw_pid() == child) {
            self.others.set(true);
        }
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        // What is left of our own stops is of interest to nobody.
        self.take_signal(&NOW);
        // SAFETY: the set outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
        if self.others.get() {
            // Whoever reaps is told now.
            let _ = kill_process(getpid(), Signal::CHILD);
        }
    }
}

fn deaths_and_stops() -> libc::sigset_t {
    // SAFETY: a signal set is an array of integers, of which every bit pattern is one.
    let mut set = unsafe { mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigaddset(&mut set, libc::SIGCHLD) };
    set
}

impl Tracee {
    /// A process that is stopped, or about to be.
    pub(super) fn new(pid: Pid) -> Self {
        Self { pid }
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// It ends when its tracer does.
    pub(super) fn end_with_tracer(&self) -> io::Result<()> {
        self.request(libc::PTRACE_SETOPTIONS, 0, libc::PTRACE_O_EXITKILL as usize)
    }

    /// Lets it run to its next stop.
    pub(super) fn go_on(&self) -> io::Result<()> {
        self.request(libc::PTRACE_CONT, 0, 0)
    }

    /// Lets it run for good.
    pub(super) fn detach(&self) -> io::Result<()> {
        self.request(libc::PTRACE_DETACH, 0, 0)
    }

    pub(super) fn registers(&self) -> io::Result<Registers> {
        // SAFETY: registers are integers, of which every bit pattern is one.
        let mut registers: Registers = unsafe { mem::zeroed() };
        let to = ptr::from_mut(&mut registers);
        // SAFETY: the request writes one such structure.
        succeeded(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid.as_raw_pid(), 0usize, to) })?;
        Ok(registers)
    }

    pub(super) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let from = ptr::from_ref(registers);
        // SAFETY: the request reads one such structure.
        succeeded(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid.as_raw_pid(), 0usize, from) })
            .map(drop)
    }

    /// Writes one word, also where it may not write itself.
    pub(super) fn poke(&self, address: u64, word: u64) -> io::Result<()> {
        self.request(libc::PTRACE_POKETEXT, address as usize, word as usize)
    }

    /// Whether a signal waits for it.
    pub(super) fn has_signal(&self) -> io::Result<bool> {
        for queue in [0, libc::PTRACE_PEEKSIGINFO_SHARED] {
            let which = libc::ptrace_peeksiginfo_args { off: 0, flags: queue, nr: 1 };
            // SAFETY: all bit patterns of a `siginfo_t` are valid.
            let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
            let (which, info) = (ptr::from_ref(&which), ptr::from_mut(&mut info));
            // SAFETY: the request reads the one and writes at most `nr` of the other.
            let found = unsafe { libc::ptrace(libc::PTRACE_PEEKSIGINFO, self.pid.as_raw_pid(), which, info) };
            if succeeded(found)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads its memory.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let local = vector(bytes.as_mut_ptr().cast(), bytes.len());
        let remote = vector(address as *mut _, bytes.len());
        // SAFETY: our side is a slice that may be written; the other is no memory of ours.
        let count = unsafe { libc::process_vm_readv(self.pid.as_raw_pid(), &local, 1, &remote, 1, 0) };
        complete(count, bytes.len())
    }

    /// Writes pieces of its memory where it may write itself.
    pub(super) fn write(&self, pieces: &[(u64, &[u8])]) -> io::Result<()> {
        let local: Vec<_> =
            pieces.iter().map(|(_, bytes)| vector(bytes.as_ptr().cast_mut().cast(), bytes.len())).collect();
        let remote: Vec<_> =
            pieces.iter().map(|(address, bytes)| vector(*address as *mut _, bytes.len())).collect();
        let count = pieces.len() as libc::c_ulong;
        // SAFETY: our side is slices, which are only read; the other is no memory of ours.
        let written = unsafe {
            libc::process_vm_writev(self.pid.as_raw_pid(), local.as_ptr(), count, remote.as_ptr(), count, 0)
        };
        complete(written, pieces.iter().map(|(_, bytes)| bytes.len()).sum())
    }

    fn request(&self, kind: c_uint, address: usize, data: usize) -> io::Result<()> {
        // SAFETY: the requests that come here take numbers, and addresses of the other process.
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
