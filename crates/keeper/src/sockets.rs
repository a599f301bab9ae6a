//! The sockets of one VM. The VMM inherits the listeners; the server gets streams that are already connected.

use std::{
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::{
    Error,
    data_dir::{create_dir_all, remove_dir_all},
};

/// A listening socket and a stream that is connected to it.
#[derive(Debug)]
pub(crate) struct SocketPair {
    pub(crate) listener: OwnedFd,
    pub(crate) stream: OwnedFd,
}

impl SocketPair {
    fn open(path: &Path) -> Result<Self, Error> {
        let open = || {
            let listener = UnixListener::bind(path)?;
            // The connection waits in the listener's backlog until the VMM accepts it.
            let stream = UnixStream::connect(path)?;
            std::io::Result::Ok(Self { listener: listener.into(), stream: stream.into() })
        };
        open().map_err(Error::io(path.display().to_string()))
    }
}

const NAMES: [&str; 3] = ["monitor", "agent", "console"];

#[derive(Debug)]
pub(crate) struct SocketPairs {
    pub(crate) monitor: SocketPair,
    pub(crate) agent: SocketPair,
    pub(crate) console: SocketPair,
}

/// The folder of one VM's sockets, accessible to root only.
#[derive(Debug)]
pub(crate) struct SocketDir(PathBuf);

impl SocketDir {
    /// # Errors
    /// It cannot be created; nothing is left behind then.
    pub(crate) fn create(path: PathBuf) -> Result<(Self, SocketPairs), Error> {
        create_dir_all(&path, 0o700)?;
        let open = |name: &str| SocketPair::open(&path.join(name));
        let lines = || {
            let [monitor, agent, console] = NAMES.map(open);
            Ok(SocketPairs { monitor: monitor?, agent: agent?, console: console? })
        };
        match lines() {
            Ok(lines) => Ok((Self(path), lines)),
            Err(error) => {
                let _ = remove_dir_all(&path);
                Err(error)
            }
        }
    }

    /// The folder of a running VM. `None` if a socket is missing.
    pub(crate) fn find(path: PathBuf) -> Option<Self> {
        NAMES.iter().all(|name| path.join(name).exists()).then_some(Self(path))
    }

    /// New streams of monitor, agent and console. They wait in the backlog until the VMM's current connection is
    /// closed.
    ///
    /// # Errors
    /// The VMM is gone, or the backlog is full.
    pub(crate) fn connect(&self) -> Result<[OwnedFd; 3], Error> {
        let [monitor, agent, console] = NAMES.map(|name| {
            let path = self.0.join(name);
            let connected = || {
                // Non-blocking, so that a full backlog is an error.
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&stream, &SocketAddrUnix::new(&path)?).map(|()| stream)
            };
            connected().map_err(|error: rustix::io::Errno| Error::io(path.display().to_string())(error))
        });
        Ok([monitor?, agent?, console?])
    }

    pub(crate) fn remove(&self) -> Result<(), Error> {
        remove_dir_all(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn the_stream_is_connected_before_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let (sockets, lines) = SocketDir::create(dir.path().join("vm")).unwrap();
        let mut stream = UnixStream::from(lines.monitor.stream);
        stream.write_all(b"early").unwrap();
        let listener = UnixListener::from(lines.monitor.listener);
        let (mut accepted, _) = listener.accept().unwrap();
        let mut word = [0; 5];
        accepted.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"early");
        // The VMM accepts another server's connection after this one.
        let [monitor, ..] = SocketDir::find(dir.path().join("vm")).unwrap().connect().unwrap();
        UnixStream::from(monitor).write_all(b"later").unwrap();
        listener.accept().unwrap().0.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"later");
        sockets.remove().unwrap();
        assert!(SocketDir::find(dir.path().join("vm")).is_none());
        assert!(!dir.path().join("vm").exists());
    }
}
