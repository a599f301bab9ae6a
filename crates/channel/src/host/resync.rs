//! How a new connection finds the beginning of the stream.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::Error;
use crate::marker::{Marker, Scanner};

/// How long the first echo is waited for. Doubled each time, so that a slow guest is given the time it takes.
const FIRST_PATIENCE: Duration = Duration::from_millis(250);

/// Sends markers until the guest answers the latest one. Returns what it sent behind the echo.
///
/// Only the latest counts: the guest answers each that it reads, and behind the echo of the last none can follow.
/// The caller sets the deadline.
pub(super) async fn resync(stream: &mut UnixStream) -> Result<Vec<u8>, Error> {
    let mut scanner = Scanner::default();
    let mut patience = FIRST_PATIENCE;
    loop {
        let marker = Marker::new(rand::random());
        stream.write_all(&marker.to_bytes()).await.map_err(|_| Error::Ended)?;
        match timeout(patience, find(stream, &mut scanner, marker)).await {
            Ok(found) => return found,
            Err(_) => patience *= 2,
        }
    }
}

async fn find(stream: &mut UnixStream, scanner: &mut Scanner, wanted: Marker) -> Result<Vec<u8>, Error> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = stream.read(&mut buffer).await.map_err(|_| Error::Ended)?;
        if count == 0 {
            return Err(Error::Ended);
        }
        let mut input = &buffer[..count];
        while let Some((found, taken)) = scanner.feed(input, &mut Vec::new()) {
            input = &input[taken..];
            if found == wanted {
                return Ok(input.to_vec());
            }
        }
    }
}
