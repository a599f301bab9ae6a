//! The sockets of one VM. The VMM listens, the server is handed a stream that is connected already.

use std::{
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use crate::{
    Error,
    data_dir::{make, remove},
};

/// Both ends of one socket.
#[derive(Debug)]
pub(crate) struct Line {
    /// For the VMM.
    pub(crate) listener: OwnedFd,
    /// For the server.
    pub(crate) stream: OwnedFd,
}

impl Line {
    fn open(path: &Path) -> Result<Self, Error> {
        let open = || {
            let listener = UnixListener::bind(path)?;
            // Waits in the listener's queue until the VMM runs.
            let stream = UnixStream::connect(path)?;
            std::io::Result::Ok(Self { listener: listener.into(), stream: stream.into() })
        };
        open().map_err(Error::io(path.display().to_string()))
    }
}

/// The lines of one VM.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) monitor: Line,
    pub(crate) agent: Line,
    pub(crate) console: Line,
}

/// The folder of one VM's sockets, which only root reaches.
#[derive(Debug)]
pub(crate) struct SocketDir(PathBuf);

impl SocketDir {
    /// # Errors
    /// It cannot be made; nothing is left then.
    pub(crate) fn create(path: PathBuf) -> Result<(Self, Lines), Error> {
        make(&path, 0o700)?;
        let open = |name: &str| Line::open(&path.join(name));
        let lines =
            || Ok(Lines { monitor: open("monitor")?, agent: open("agent")?, console: open("console")? });
        match lines() {
            Ok(lines) => Ok((Self(path), lines)),
            Err(error) => {
                let _ = remove(&path);
                Err(error)
            }
        }
    }

    pub(crate) fn remove(&self) -> Result<(), Error> {
        remove(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn the_stream_is_connected_before_anybody_accepts() {
        let dir = tempfile::tempdir().unwrap();
        let (sockets, lines) = SocketDir::create(dir.path().join("vm")).unwrap();
        let mut stream = UnixStream::from(lines.monitor.stream);
        stream.write_all(b"early").unwrap();
        let (mut accepted, _) = UnixListener::from(lines.monitor.listener).accept().unwrap();
        let mut word = [0; 5];
        accepted.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"early");
        sockets.remove().unwrap();
        assert!(!dir.path().join("vm").exists());
    }
}
