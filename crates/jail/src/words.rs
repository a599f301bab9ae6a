//! What a jailed process says on its standard error, for whoever has to explain its end.

use std::{
    io::{self, PipeReader, Read},
    os::fd::OwnedFd,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::Error;

/// A pipe that nobody reads while the process runs: it holds 64 KiB, further words are lost, and no writer ever waits.
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
            fcntl_setfl(&writer, fcntl_getfl(&writer)? | OFlags::NONBLOCK)?;
            io::Result::Ok((Self(reader), writer.into()))
        };
        make().map_err(Error::io("pipe for the words of a process"))
    }

    /// At most `bytes` of them. Waits until all writers are gone, so the process must have ended.
    pub fn read(self, bytes: u64) -> String {
        let mut said = Vec::new();
        let _ = self.0.take(bytes).read_to_end(&mut said);
        String::from_utf8_lossy(&said).trim().to_owned()
    }
}
