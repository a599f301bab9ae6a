//! The port: a character device whose other end is the host, which may be away.
//!
//! Without a host the device is hung up, and the runtime's reactor never forgets a hang-up: a descriptor that was
//! registered then would be ready for good, and whoever reads it would spin. So the device itself is not registered;
//! each direction waits at an epoll instance of its own, edge-triggered, which is ready only when something changed.
//! That also tells when a host comes, at no cost while none does.

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

use crate::error::{Doing, Error};

/// The name that the host gave the port.
const NAME: &str = "skep.agent";
/// How often the port is looked for, every 10 ms.
const TRIES: u32 = 1000;
/// How long a host's coming may go unnoticed should the kernel not tell of it.
const GLANCE: Duration = Duration::from_secs(1);

/// The device. It is opened once: the kernel lets nobody else in.
#[derive(Debug)]
pub(crate) struct PortFile(Arc<OwnedFd>);

impl PortFile {
    pub(crate) fn open() -> Result<Self, Error> {
        let path = find().doing(format!("find the port {NAME}"))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::empty()).doing(format!("open {}", path.display()))?;
        Ok(Self(Arc::new(file)))
    }

    /// Waits until a host is at the other end.
    pub(crate) async fn host_is_there(&self) -> Result<(), Error> {
        let changes = Changes::of(&self.0).doing("watch the port")?;
        while hung_up(&self.0).doing("look at the port")? {
            // The kernel wakes us; the glance is for one that does not.
            let _ = tokio::time::timeout(GLANCE, std::future::poll_fn(|cx| changes.poll_next(cx))).await;
        }
        Ok(())
    }

    /// The stream to the host that is there now. It ends when that host hangs up.
    pub(crate) fn stream(&self) -> Result<Port, Error> {
        let changes = || Changes::of(&self.0).doing("watch the port");
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

/// Tells that something about the port changed. For one waiting task.
#[derive(Debug)]
struct Changes(AsyncFd<OwnedFd>);

impl Changes {
    fn of(file: &OwnedFd) -> io::Result<Self> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::HUP | epoll::EventFlags::ET;
        epoll::add(&watch, file, epoll::EventData::new_u64(0), events)?;
        // SAFETY: an `OwnedFd` keeps its one descriptor open for as long as the `AsyncFd` owns it.
        Ok(Self(unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }?))
    }

    /// Takes the next change. Whoever was told has to look at the port again before asking here once more.
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
    readable: Changes,
    writable: Changes,
}

impl AsyncRead for Port {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match rustix::io::read(&self.file, out.initialize_unfilled()) {
                // Nothing at all means that the host hung up, which is the end of this stream.
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
                // A port without a host takes nothing, and says no more than that.
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
