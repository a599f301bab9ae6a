//! What every program does first that is started at a place with a fence.

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

/// Landlock rules that a program cannot leave, and nothing that it starts. Whoever makes the place makes the rules; here
/// they are only entered. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fence(Option<Arc<OwnedFd>>);

impl Fence {
    /// A fence of these rules: a ruleset of Landlock. `None` where the kernel has no Landlock.
    pub fn new(ruleset: Option<OwnedFd>) -> Self {
        Self(ruleset.map(Arc::new))
    }

    /// Has the program enter it between fork and exec.
    pub fn around(&self, command: &mut Command) {
        let fence = self.clone();
        // SAFETY: `enter` makes plain system calls; nothing in it allocates or takes a lock.
        unsafe { command.pre_exec(move || fence.enter()) };
    }

    /// For this thread and all that it starts from now on. Only plain system calls.
    fn enter(&self) -> io::Result<()> {
        set_no_new_privs(true)?;
        offer_to_the_oom_killer();
        let Some(ruleset) = &self.0 else { return Ok(()) };
        // SAFETY: it takes two numbers and touches no memory.
        match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Where memory runs out, a program goes before whoever started it. One that cannot say so runs all the same.
fn offer_to_the_oom_killer() {
    let opened =
        rustix::fs::openat(CWD, c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(file) = opened {
        let _ = rustix::io::write(&file, b"500");
    }
}
