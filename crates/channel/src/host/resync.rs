//! Finds the start of a new connection in the stream.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::Error;
use crate::marker::{Marker, Scanner};

/// How long to wait for the first echo. Doubled on each attempt, so that a slow guest gets enough time.
const FIRST_ECHO_TIMEOUT: Duration = Duration::from_millis(250);

/// Sends markers until the guest echoes the latest one. Returns the bytes that followed the echo.
///
/// Only the latest marker counts: the guest echoes each marker that it reads, so nothing older can follow the last
/// echo. The caller sets the deadline.
pub(super) async fn resync(stream: &mut UnixStream) -> Result<Vec<u8>, Error> {
    let mut scanner = Scanner::default();
    let mut echo_timeout = FIRST_ECHO_TIMEOUT;
    loop {
        let marker = Marker::new(rand::random());
        stream.write_all(&marker.to_bytes()).await.map_err(|_| Error::Ended)?;
        match timeout(echo_timeout, wait_for_echo(stream, &mut scanner, marker)).await {
            Ok(found) => return found,
            Err(_) => echo_timeout *= 2,
        }
    }
}

async fn wait_for_echo(
    stream: &mut UnixStream,
    scanner: &mut Scanner,
    wanted: Marker,
) -> Result<Vec<u8>, Error> {
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
