//! Writes the output of a command that works on a ticket to the store while it runs.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use skep_api::{
    VmId,
    exec::{ExecEvent, ExecExit},
};
use skep_channel::{Error, Guest};
use skep_store::{AppendLog, LogPosition, VmStore};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};

use crate::boot_command::MAX_COMMAND_DURATION;

/// How long output is buffered before it is written.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);
/// How much output is buffered, in bytes.
const MAX_BUFFER_BYTES: usize = 256 << 10;
/// Average rate limit per command, in bytes per second. A command that prints more blocks, as on a full pipe.
const MAX_BYTES_PER_SECOND: f64 = 2.0 * 1024.0 * 1024.0;
/// Back-off between attempts at the store. Doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Concurrent writes of all logs, so that they do not delay other requests to the store.
static WRITE_PERMITS: Semaphore = Semaphore::const_new(2);

pub(crate) struct RunLog {
    store: Arc<dyn VmStore>,
    vm: VmId,
    buffer: Vec<u8>,
    position: LogPosition,
    /// When the buffer is written at the latest.
    flush_at: Option<Instant>,
}

impl RunLog {
    /// Continues the log after the part that an earlier server wrote.
    pub(crate) async fn resume(store: &Arc<dyn VmStore>, vm: VmId) -> Self {
        let mut pause = INITIAL_BACKOFF;
        let position = loop {
            match store.log_position(vm).await {
                Ok(position) => break position,
                Err(error) => tracing::warn!(%vm, %error, "the log of VM {vm} was not read: {error}"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        };
        Self { store: Arc::clone(store), vm, buffer: Vec::new(), position, flush_at: None }
    }

    /// Writes the output until the command ends. If the events break off, the output so far is written.
    ///
    /// # Errors
    /// The guest refused, ended, or did not answer.
    pub(crate) async fn follow(&mut self, guest: &Guest, exec_id: &str) -> Result<ExecExit, Error> {
        let exit = self.buffer_events(guest, exec_id).await;
        self.flush().await;
        exit
    }

    async fn buffer_events(&mut self, guest: &Guest, exec_id: &str) -> Result<ExecExit, Error> {
        let LogPosition { stdout, stderr } = self.position;
        let mut events = guest.attach_detached(exec_id, stdout, stderr, MAX_COMMAND_DURATION).await?;
        loop {
            let next = match self.flush_at {
                None => Ok(events.next().await),
                Some(due) => timeout_at(due, events.next()).await,
            };
            match next {
                Err(_) => self.flush().await,
                Ok(Some(Ok(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes)))) => {
                    self.buffer.extend_from_slice(&bytes);
                    // The guest is not trusted, and the store's integers are signed.
                    let most = i64::MAX.unsigned_abs();
                    self.position = LogPosition {
                        stdout: events.stdout_offset().min(most),
                        stderr: events.stderr_offset().min(most),
                    };
                    self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH_INTERVAL);
                    if self.buffer.len() >= MAX_BUFFER_BYTES {
                        self.flush().await;
                    }
                }
                Ok(Some(Ok(ExecEvent::Exit(exit)))) => return Ok(exit),
                Ok(Some(Err(error))) => return Err(error),
                Ok(None) => {
                    return Err(Error::Malformed("the events of a command ended before its exit".to_owned()));
                }
            }
        }
    }

    /// Writes the buffer. If the store fails, the output is lost: the command must not wait for a full disk.
    async fn flush(&mut self) {
        self.flush_at = None;
        if self.buffer.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.buffer);
        let (vm, length, begun) = (self.vm, bytes.len(), Instant::now());
        let append = AppendLog { vm, bytes, position: self.position };
        let written = {
            let _permit = WRITE_PERMITS.acquire().await;
            self.store.append_log(append).await
        };
        if let Err(error) = written {
            tracing::warn!(%vm, %error, "{length} bytes of the log of VM {vm} are lost: {error}");
        }
        #[expect(clippy::cast_precision_loss, reason = "a few hundred KiB")]
        let least = Duration::from_secs_f64(length as f64 / MAX_BYTES_PER_SECOND);
        sleep(least.saturating_sub(begun.elapsed())).await;
    }
}
