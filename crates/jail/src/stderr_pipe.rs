//! A pipe for the standard error of a jailed process, which is logged when the process has ended.

use std::{
    io::{self, PipeReader, Read},
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::Error;

/// A pipe that is not read while the process runs. It holds 64 KiB; later output is lost, and writers never block.
#[derive(Debug)]
pub struct StderrPipe(PipeReader);

impl StderrPipe {
    /// Creates the pipe, and returns its write end for [`crate::Handles::stderr`].
    ///
    /// # Errors
    /// The limit of open descriptors is reached.
    pub fn create() -> Result<(Self, OwnedFd), Error> {
        let make = || {
            let (reader, writer) = io::pipe()?;
            for end in [reader.as_fd(), writer.as_fd()] {
                fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
            }
            io::Result::Ok((Self(reader), writer.into()))
        };
        make().map_err(Error::io("pipe for the words of a process"))
    }

    /// Reads at most `bytes` of the pipe's current content. Never blocks: the process may have sent a copy of the write
    /// end over a socket, and then the pipe has no end of file.
    pub fn read(self, bytes: u64) -> String {
        let mut text = Vec::new();
        // An empty pipe with a writer fails with `WouldBlock`; the bytes that were read before it are kept.
        let _ = self.0.take(bytes).read_to_end(&mut text);
        String::from_utf8_lossy(&text).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use super::*;

    #[test]
    fn the_content_is_read_while_a_writer_exists() {
        let (pipe, writer) = StderrPipe::create().unwrap();
        let mut writer = File::from(writer);
        writer.write_all(b"last words\n").unwrap();
        assert_eq!(pipe.read(100), "last words");
        drop(writer);
    }

    #[test]
    fn no_more_is_read_than_asked_for() {
        let (pipe, writer) = StderrPipe::create().unwrap();
        let mut writer = File::from(writer);
        while writer.write(b"words ").is_ok() {}
        assert_eq!(pipe.read(10), "words word");
    }
}
