//! The pipes of one git.

use std::io;

use futures_util::StreamExt;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
};

use crate::Content;

/// How much of the standard error is kept, in bytes: the last part.
const MAX_STDERR: usize = 16 << 10;

/// Our ends of a process's pipes.
pub(super) struct Pipes {
    pub(super) stdin: Option<pipe::Sender>,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

/// Writes the input, then the content. A broken pipe is not an error: git reports the reason itself.
///
/// # Errors
/// The content ends with an error.
pub(super) async fn write_input(
    pipe: &mut pipe::Sender,
    input: &[u8],
    mut content: Content,
) -> io::Result<()> {
    if pipe.write_all(input).await.is_err() {
        return Ok(());
    }
    while let Some(piece) = content.next().await {
        if pipe.write_all(&piece?).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads until the end or the limit. Returns whether the limit was exceeded.
pub(super) async fn read_limited(
    pipe: &mut (impl AsyncRead + Unpin),
    into: &mut Vec<u8>,
    most: usize,
) -> bool {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => return false,
            Ok(count) if into.len() + count > most => {
                into.extend_from_slice(&buffer[..most - into.len()]);
                return true;
            }
            Ok(count) => into.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Reads until the end and keeps the last part.
pub(super) async fn read_tail(pipe: &mut (impl AsyncRead + Unpin), into: &mut Vec<u8>) {
    let mut buffer = vec![0; 4 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        into.extend_from_slice(&buffer[..count]);
        if into.len() > 2 * MAX_STDERR {
            into.drain(..into.len() - MAX_STDERR);
        }
    }
}
