//! The virtio port to the host: a character device whose other end may be closed.
//!
//! While no host is connected, the device reports a hang-up. Tokio's reactor never clears a hang-up, so a descriptor
//! that was registered in this state would be ready forever and its reader would spin. The device is therefore not
//! registered directly. Each direction has its own epoll instance in edge-triggered mode, which becomes ready only
//! when the state changes. This also reports when a host connects.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    fs::{Mode, OFlags, open},
    io::Errno,
};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd};

use crate::error::{Error, StepContext};

/// The name that the host gives to the port.
const NAME: &str = "skep.agent";
/// The most attempts to find the port, 10 ms apart.
const TRIES: u32 = 1000;
/// The interval at which the port is checked for a host, in case the kernel does not report it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The device. It is opened only once: the kernel allows a single open descriptor.
#[derive(Debug)]
pub(crate) struct PortFile(Arc<OwnedFd>);

impl PortFile {
    pub(crate) fn open() -> Result<Self, Error> {
        let path = find().context(format!("find the port {NAME}"))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::empty()).context(format!("open {}", path.display()))?;
        Ok(Self(Arc::new(file)))
    }

    /// Waits until a host is connected.
    pub(crate) async fn wait_for_host(&self) -> Result<(), Error> {
        let changes = StateChanges::watch(&self.0).context("watch the port")?;
        while hung_up(&self.0).context("look at the port")? {
            // Normally the kernel wakes this task; the timeout is a fallback.
            let _ =
                tokio::time::timeout(POLL_INTERVAL, std::future::poll_fn(|cx| changes.poll_next(cx))).await;
        }
        Ok(())
    }

    /// A stream to the connected host. It ends when this host hangs up.
    pub(crate) fn stream(&self) -> Result<Port, Error> {
        let changes = || StateChanges::watch(&self.0).context("watch the port");
        Ok(Port { file: Arc::clone(&self.0), readable: changes()?, writable: changes()? })
    }
}

fn find() -> io::Result<PathBuf> {
    for _ in 0..TRIES {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            let device = PathBuf::from("/dev").join(entry.file_name());
            if name.trim_end() == NAME && device.exists() {
                return Ok(device);
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

fn hung_up(file: &OwnedFd) -> rustix::io::Result<bool> {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().contains(PollFlags::HUP))
}

/// Reports state changes of the port to one waiting task.
#[derive(Debug)]
struct StateChanges(AsyncFd<OwnedFd>);

impl StateChanges {
    fn watch(file: &OwnedFd) -> io::Result<Self> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::HUP | epoll::EventFlags::ET;
        epoll::add(&watch, file, epoll::EventData::new_u64(0), events)?;
        // SAFETY: an `OwnedFd` keeps its one descriptor open for as long as the `AsyncFd` owns it.
        Ok(Self(unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }?))
    }

    /// Consumes the next change. The caller must check the state of the port before it polls again.
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_read_ready(cx))?.clear_ready();
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
        epoll::wait(self.0.get_ref(), &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Poll::Ready(Ok(()))
    }
}

/// The stream to one host.
#[derive(Debug)]
pub(crate) struct Port {
    file: Arc<OwnedFd>,
    readable: StateChanges,
    writable: StateChanges,
}

impl AsyncRead for Port {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match rustix::io::read(&self.file, out.initialize_unfilled()) {
                // Zero bytes mean that the host hung up: the end of this stream.
                Ok(count) => {
                    out.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => ready!(self.readable.poll_next(cx))?,
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Port {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match rustix::io::write(&self.file, bytes) {
                Ok(count) => return Poll::Ready(Ok(count)),
                // Without a host, writes fail with `EAGAIN` only.
                Err(Errno::AGAIN) if hung_up(&self.file)? => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                Err(Errno::AGAIN) => ready!(self.writable.poll_next(cx))?,
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
