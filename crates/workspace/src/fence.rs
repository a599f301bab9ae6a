//! The sandbox that a program enters between fork and exec.

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::Arc,
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    thread::set_no_new_privs,
};

/// Landlock rules and a system call filter that a program and its descendants cannot leave. The creator of the place
/// builds them; this type only enters them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fence {
    ruleset: Option<Arc<OwnedFd>>,
    syscall_filter: Option<SyscallFilter>,
}

/// A seccomp program that denies system calls. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SyscallFilter(Arc<[libc::sock_filter]>);

impl SyscallFilter {
    /// Each instruction of the seccomp program is its operation, both jump offsets and the operand.
    pub fn new(instructions: impl IntoIterator<Item = (u16, u8, u8, u32)>) -> Self {
        let filter = |(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k };
        Self(instructions.into_iter().map(filter).collect())
    }

    /// Applies to this thread and all processes it starts later. Requires `no_new_privs`; makes a single system call.
    fn enter(&self) -> io::Result<()> {
        let len = u16::try_from(self.0.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: the kernel copies the instructions, which live as long as `self`, and writes nothing.
        match unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Fence {
    /// A fence with a Landlock ruleset. `None` where the kernel has no Landlock.
    pub fn new(ruleset: Option<OwnedFd>) -> Self {
        Self { ruleset: ruleset.map(Arc::new), syscall_filter: None }
    }

    /// Adds a system call filter.
    #[must_use]
    pub fn with_syscall_filter(self, denials: SyscallFilter) -> Self {
        Self { syscall_filter: Some(denials), ..self }
    }

    /// Makes the program enter the fence between fork and exec.
    pub fn apply_to(&self, command: &mut Command) {
        let fence = self.clone();
        // SAFETY: `enter` makes plain system calls; nothing in it allocates or takes a lock.
        unsafe { command.pre_exec(move || fence.enter()) };
    }

    /// Applies to this thread and all processes it starts later. Makes only plain system calls.
    fn enter(&self) -> io::Result<()> {
        set_no_new_privs(true)?;
        raise_oom_score();
        if let Some(ruleset) = &self.ruleset {
            // SAFETY: the call takes two numbers and accesses no memory.
            let entered = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
            if entered != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        self.syscall_filter.as_ref().map_or(Ok(()), SyscallFilter::enter)
    }
}

/// Makes the OOM killer prefer the program over the process that started it. A failure is ignored.
fn raise_oom_score() {
    let opened =
        rustix::fs::openat(CWD, c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(file) = opened {
        let _ = rustix::io::write(&file, b"500");
    }
}
