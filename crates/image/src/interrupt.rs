//! A bake that is told to stop. Its processes end, the step under way fails, and what the bake made goes the way that it
//! goes after any failure. A signal's default would leave all of it.

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

use crate::{Error, place::Site};

/// The signals that mean it: from the terminal, from a service manager, from a terminal that was closed.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// How often it is looked whether one came.
const PAUSE: Duration = Duration::from_millis(50);

/// The last signal; 0 is none.
static TOLD: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    TOLD.store(signal, Ordering::Relaxed);
}

/// While it exists, a signal ends the bake's processes and not this one. One bake of a process at a time.
pub(crate) struct Watch {
    before: Vec<(libc::c_int, libc::sigaction)>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches over the bake of this site.
    pub(crate) fn begin(site: Site) -> Result<Self, Error> {
        TOLD.store(0, Ordering::Relaxed);
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(PAUSE) {
                if TOLD.load(Ordering::Relaxed) != 0
                    && let Err(error) = site.end_processes()
                {
                    tracing::warn!(%error, "a process of the bake does not end: {error}");
                }
            }
        });
        let thread = thread.map_err(Error::io("thread of the bake"))?;
        let mut watch = Self { before: Vec::new(), stop: Some(stop), thread: Some(thread) };
        for signal in SIGNALS {
            watch.take(signal).map_err(Error::io("signals"))?;
        }
        Ok(watch)
    }

    /// The error that stands for a signal, where one came.
    pub(crate) fn verdict(&self) -> Result<(), Error> {
        match TOLD.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::Interrupted(signal)),
        }
    }

    fn take(&mut self, signal: libc::c_int) -> io::Result<()> {
        // SAFETY: a `sigaction` of zeros is one: no flags, an empty mask.
        let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        ours.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        ours.sa_flags = libc::SA_RESTART;
        let before = exchange(signal, None)?;
        // Under `nohup` a closed terminal is to mean nothing.
        if before.sa_sigaction != libc::SIG_IGN {
            self.before.push((signal, exchange(signal, Some(&ours))?));
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // It was there before, so it is a valid one.
            let _ = exchange(*signal, Some(before));
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sets what a signal does, or only reads it. Returns what it did before.
fn exchange(signal: libc::c_int, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::uninit();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both point to a `sigaction` or are null, and the only handler of ours stores one atomic number.
    if unsafe { libc::sigaction(signal, new, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it wrote it.
    Ok(unsafe { before.assume_init() })
}
