//! The standard output of a git as a stream.

use std::io;

use bytes::Bytes;
use futures_util::stream;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{Group, Pipes, read_tail};
use crate::Content;

/// Bytes of one read.
const CHUNK: usize = 64 << 10;

/// A started git with its pipes, input and deadline.
pub(super) struct StartedGit {
    pub(super) group: Group,
    pub(super) pipes: Pipes,
    /// Written to the standard input.
    pub(super) input: Vec<u8>,
    pub(super) deadline: Instant,
}

/// State of the output stream.
struct OutputStream {
    group: Group,
    stdout: pipe::Receiver,
    stderr: JoinHandle<Vec<u8>>,
    deadline: Instant,
}

pub(super) fn into_content(mut git: StartedGit) -> Content {
    let (stdin, input) = (git.pipes.stdin.take(), std::mem::take(&mut git.input));
    tokio::spawn(async move {
        if let Some(mut pipe) = stdin {
            // A broken pipe is no error here: git reports the reason itself.
            let _ = pipe.write_all(&input).await;
        }
    });
    let (ours, theirs) = (git.pipes.stdout, git.pipes.stderr);
    let complaints = tokio::spawn(async move {
        let (mut theirs, mut tail) = (theirs, Vec::new());
        read_tail(&mut theirs, &mut tail).await;
        tail
    });
    let speaking =
        OutputStream { group: git.group, stdout: ours, stderr: complaints, deadline: git.deadline };
    Box::pin(stream::unfold(Some(speaking), async |speaking| {
        let mut speaking = speaking?;
        match speaking.next_chunk().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(speaking))),
            Ok(None) => speaking.finish().await.err().map(|error| (Err(error), None)),
            Err(error) => Some((Err(error), None)),
        }
    }))
}

impl OutputStream {
    /// The next bytes; `None` at the end.
    async fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        let mut piece = vec![0; CHUNK];
        let count = timeout_at(self.deadline, self.stdout.read(&mut piece)).await??;
        piece.truncate(count);
        Ok((count > 0).then(|| piece.into()))
    }

    /// Waits for the process. Its standard error is the error if it failed.
    async fn finish(self) -> io::Result<()> {
        let status = self.group.wait().await;
        if status.is_some_and(|status| status.success()) {
            return Ok(());
        }
        let message = self.stderr.await.unwrap_or_default();
        Err(io::Error::other(String::from_utf8_lossy(&message).trim().to_owned()))
    }
}
