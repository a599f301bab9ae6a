//! Handles signals during a bake: ends its processes, so that the current step fails and the usual cleanup runs. The
//! default action of the signals would leave everything behind.

use std::{
    io,
    mem::MaybeUninit,
    sync::{
        atomic::{AtomicI32, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{Error, environment::ResourceNames};

/// Signals that stop a bake: from the terminal, from a service manager, and from a terminal that was closed.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Interval of the check for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The last signal received; 0 if none.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn handle(signal: libc::c_int) {
    RECEIVED.store(signal, Ordering::Relaxed);
}

/// While this exists, the signals are only recorded, so that what was made before is removed. Only one bake at a time per
/// process.
pub(crate) struct SignalGuard {
    before: Vec<(libc::c_int, libc::sigaction)>,
}

/// While this exists, a signal ends the processes of the bake. It is dropped before their control groups are removed, which
/// two threads cannot do at once.
pub(crate) struct ProcessEnder {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SignalGuard {
    /// Installs the handlers.
    pub(crate) fn begin() -> Result<Self, Error> {
        RECEIVED.store(0, Ordering::Relaxed);
        let mut guard = Self { before: Vec::new() };
        for signal in SIGNALS {
            guard.install(signal).map_err(Error::io("signals"))?;
        }
        Ok(guard)
    }

    /// Fails if a signal was received.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match RECEIVED.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::Interrupted(signal)),
        }
    }

    /// Starts the thread that ends the processes after a signal, also after one that was received before.
    pub(crate) fn end_processes_of(&self, bake: ResourceNames) -> Result<ProcessEnder, Error> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(POLL_INTERVAL) {
                if RECEIVED.load(Ordering::Relaxed) != 0
                    && let Err(error) = bake.end_processes()
                {
                    tracing::warn!(%error, "cannot end a process of the bake: {error}");
                }
            }
        });
        let thread = thread.map_err(Error::io("thread of the bake"))?;
        Ok(ProcessEnder { stop: Some(stop), thread: Some(thread) })
    }

    fn install(&mut self, signal: libc::c_int) -> io::Result<()> {
        // SAFETY: an all-zero `sigaction` is valid: no flags and an empty mask.
        let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        ours.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        ours.sa_flags = libc::SA_RESTART;
        let before = exchange(signal, None)?;
        // An ignored signal stays ignored, such as SIGHUP under `nohup`.
        if before.sa_sigaction != libc::SIG_IGN {
            self.before.push((signal, exchange(signal, Some(&ours))?));
        }
        Ok(())
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // Cannot fail: the action was valid before.
            let _ = exchange(*signal, Some(before));
        }
    }
}

impl Drop for ProcessEnder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sets or reads the action of a signal; returns the previous one.
fn exchange(signal: libc::c_int, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::uninit();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both pointers refer to a `sigaction` or are null, and the only handler set here stores one atomic number.
    if unsafe { libc::sigaction(signal, new, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and initialised it.
    Ok(unsafe { before.assume_init() })
}
