//! What a jailed process writes to its standard error, kept for the log entry about its end.

use std::{
    io::{self, PipeReader, Read},
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::Error;

/// A pipe that is not read while the process runs: it holds 64 KiB, later output is lost, and no writer ever waits.
#[derive(Debug)]
pub struct Words(PipeReader);

impl Words {
    /// The pipe, and its end for [`crate::Handles::stderr`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pipe() -> Result<(Self, OwnedFd), Error> {
        let make = || {
            let (reader, writer) = io::pipe()?;
            for end in [reader.as_fd(), writer.as_fd()] {
                fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
            }
            io::Result::Ok((Self(reader), writer.into()))
        };
        make().map_err(Error::io("pipe for the words of a process"))
    }

    /// At most `bytes` of what is in the pipe now. Never waits: the end of the process closes its own descriptors, but it
    /// may have sent a copy of the write end over a socket, and then the pipe has no end of file.
    pub fn read(self, bytes: u64) -> String {
        let mut said = Vec::new();
        // An empty pipe that still has a writer is an error, `WouldBlock`; what was read before it is kept.
        let _ = self.0.take(bytes).read_to_end(&mut said);
        String::from_utf8_lossy(&said).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use super::*;

    #[test]
    fn the_words_are_read_though_a_writer_is_left() {
        let (words, writer) = Words::pipe().unwrap();
        let mut writer = File::from(writer);
        writer.write_all(b"last words\n").unwrap();
        assert_eq!(words.read(100), "last words");
        drop(writer);
    }

    #[test]
    fn no_more_is_read_than_asked_for() {
        let (words, writer) = Words::pipe().unwrap();
        let mut writer = File::from(writer);
        while writer.write(b"words ").is_ok() {}
        assert_eq!(words.read(10), "words word");
    }
}
